"""Ways into a coordinator that cannot work: each ends in time, with a sentence and a hint."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from drumbeat.access.token import Token
from tests.support.certificates import DAY, CertificateAuthority
from tests.support.cluster import Cluster, Process, exit_all
from tests.support.impostor import Impostor
from tests.support.processes import assert_refused


def agent(cluster: Cluster, *options: str) -> Process:
    return cluster.agent(*options, __file__)


def verb(cluster: Cluster, *options: str) -> Process:
    return cluster.process("operator", "coordinator", "token", "list", *options)


@pytest.mark.slow
def test_tokens_and_plaintext_that_the_coordinator_does_not_take(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    token = coordinator.create_token()
    guessed = replace(token, secret="0" * 22)
    at = ("--coordinator", coordinator.address)
    open_file = cluster.private_file("open", token.text())
    Path(open_file).chmod(0o644)
    guess = cluster.private_file("guess", guessed.text())
    waits = ("--join-timeout", "20s")
    cases: list[tuple[Process, tuple[str, ...]]] = [
        (agent(cluster, *at, *waits, "--token-file", guess), (token.token_id, "not known here")),
        (agent(cluster, *at, *waits, "--insecure"), ("speaks TLS", "leave --insecure out")),
        (verb(cluster, *at, "--token-file", open_file), ("its mode is 0644", "chmod")),
    ]
    for process, words in cases:
        assert_refused(process, 2, *words)
        assert token.secret not in process.stdout + process.stderr
    (refusal, *_) = [
        line for line in coordinator.process.log_lines() if line["event"] == "caller refused"
    ]
    assert refusal["token.id"] == token.token_id
    assert "0" * 22 not in coordinator.process.log()


def given(cluster: Cluster, impostor: Impostor, token: Token, *options: str) -> tuple[str, ...]:
    path = cluster.private_file(f"token-{token.token_id}", token.text())
    return "--coordinator", impostor.address, "--token-file", path, *options


def test_who_stands_in_for_the_coordinator_is_told_nothing(cluster: Cluster) -> None:
    """With a certificate of another authority, which looks like the right one; or an old one.

    Where trying again may help, the exit code is 3.
    """
    ca = CertificateAuthority()
    token, own = ca.token(), ("--tls-ca", ca.write(cluster.directory))
    with (
        Impostor(CertificateAuthority(like=ca).issue()) as forged,
        Impostor(ca.issue("127.0.0.1", after=-2 * DAY, until=-DAY)) as expired,
    ):
        cases: list[tuple[Impostor, Process, int, tuple[str, ...]]] = [
            (
                forged,
                agent(cluster, *given(cluster, forged, token)),
                2,
                ("is not the coordinator that the token is of", "check --coordinator"),
            ),
            (
                expired,
                verb(cluster, *given(cluster, expired, token, *own)),
                3,
                ("has expired at", "this machine's clock says", "has to be renewed"),
            ),
        ]
        for impostor, process, code, words in cases:
            assert_refused(process, code, *words)
            assert impostor.handshakes >= 1
            assert impostor.heard == b""


@pytest.mark.slow
def test_ones_own_pki_says_who_is_there(cluster: Cluster) -> None:
    """Certificates have roles by their names; those that are replaced are shown from then on."""
    ca, folder = CertificateAuthority(), cluster.directory
    server = ca.issue("127.0.0.1").write(folder, "server")
    authorities = ca.write(folder)
    coordinator = cluster.coordinator(
        *("--tls-cert", server[0], "--tls-key", server[1], "--tls-client-ca", authorities),
        *("--tls-roles", "spiffe://train/*=join:run,ops.*=admin"),
    )
    job = cluster.job("--tls-ca", authorities, coordinator=coordinator)

    def shown(name: str, pair_of: CertificateAuthority = ca) -> tuple[str, ...]:
        file = name.replace("/", "-").replace(":", "-") + str(pair_of is ca)
        certificate, key = pair_of.issue(name).write(folder, file)
        return "--tls-cert", certificate, "--tls-key", key

    at = ("--coordinator", coordinator.address, "--tls-ca", authorities)
    training = job.join(*shown("spiffe://train/gpu7"))
    (worker,) = job.server.wait_for(1)
    first = ssl.get_server_certificate(("127.0.0.1", coordinator.port))
    renewed = ca.issue("127.0.0.1").write(folder, "renewed")
    for new, old in zip(renewed, server, strict=True):
        Path(new).rename(old)
    assert ssl.get_server_certificate(("127.0.0.1", coordinator.port)) != first

    stranger = shown("spiffe://train/gpu8", CertificateAuthority())
    cases = [
        (verb(cluster, *at, *stranger), "does not accept the certificate of --tls-cert"),
        (verb(cluster, *at, *shown("spiffe://train/gpu7")), "needs the role admin"),
        (
            agent(cluster, *at, "--run-id", "other", *shown("spiffe://train/gpu7")),
            "it is for the run run only",
        ),
    ]
    listed = verb(cluster, *at, *shown("ops.example"))
    for process, problem in cases:
        assert_refused(process, 2, problem)
    assert listed.wait() == 0, listed.log()
    assert "CREATED BY" in listed.stdout
    assert not worker.is_gone
    assert "coordinator lost" not in training.stderr
    exit_all([worker])
    assert training.wait() == 0
