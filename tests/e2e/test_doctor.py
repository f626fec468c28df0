"""`agent doctor` and coordinators: let in by those that are right, told why by all others."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from drumbeat import VERSION
from drumbeat.access.token import Role
from drumbeat.agent.doctor import coordinator as doctor
from drumbeat.agent.doctor.checks import CHECKS, examine
from drumbeat.agent.doctor.model import LEVELS, Finding, Host
from drumbeat.agent.settings.doctor import DoctorSettings
from drumbeat.wire.mapping import CLOCK_KEY, VERSION_KEY
from tests.support.certificates import DAY, CertificateAuthority
from tests.support.cluster import Cluster
from tests.support.coordinators import coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.follower import follower
from tests.support.impostor import Impostor
from tests.support.processes import assert_refused

OK, WARN, FAIL = LEVELS
COORDINATOR = [check for check in CHECKS if check.name == "coordinator"]


async def problems(coordinator: str, **given: Any) -> list[Finding]:
    """What is wrong with coordinators; there is always an answer."""
    host = Host(settings=DoctorSettings(coordinator=coordinator, **given), environment={})
    rows = await examine(host, COORDINATOR)
    assert {row["target"] for row in rows} == set(host.coordinators)
    return [Finding(row["level"], row["text"], row["advice"]) for row in rows if row["level"] != OK]


def expect(found: list[Finding], level: str, text: str, advice: str) -> None:
    (only,) = found
    assert only.level is level
    assert text in only.text
    assert advice in only.advice


@pytest.mark.slow
async def test_tokens_that_are_right_wrong_foreign_and_expired(cluster: Cluster) -> None:
    coordinator, at = cluster.coordinator(), ""
    at = coordinator.address
    right, of_run = coordinator.create_token(), coordinator.create_token(run_id="mt5")
    view = coordinator.create_token(Role.VIEW)
    short = coordinator.create_token(ttl_s=1)
    began = time.monotonic()
    for token, run_id in ((right, ""), (right, "mt5"), (of_run, "mt5"), (None, "")):
        assert not await problems(at, token=token, run_id=run_id)
    another_run = await problems(at, token=of_run, run_id="other")
    expect(another_run, FAIL, "it is for the run mt5 only", "coordinator token create")
    without_run = await problems(at, token=of_run)
    expect(without_run, WARN, "it is for the run mt5 only", "give --run-id")
    unknown = replace(right, secret="0" * 22)
    expect(await problems(at, token=unknown), FAIL, "not known here", "--role join")
    expect(await problems(at, token=view), FAIL, "cannot join", "--role join")
    coordinator.revoke(right)
    expect(await problems(at, token=right), FAIL, "was revoked", "--role join")
    await asyncio.sleep(max(0, began + 1.5 - time.monotonic()))  # its time is a clock's
    expect(await problems(at, token=short), FAIL, "has expired", "--role join")
    other = CertificateAuthority().token()
    expect(await problems(at, token=other), FAIL, "is not the coordinator that the token", "check")
    expect(await problems(at, insecure=True), FAIL, "speaks TLS", "leave --insecure out")
    expect(await problems(at, tls_ca="/no/ca"), FAIL, "/no/ca", "")
    assert right.secret not in coordinator.process.log()


@pytest.mark.slow
async def test_the_command_says_so_and_ends_with_its_exit_code(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    token = coordinator.create_token()
    guess = replace(token, secret="0" * 22)
    fast = {"PYTHON_EXEC": "/bin/true", "http_proxy": "http://user:hunter2pass@proxy:3128"}
    asked = [
        cluster.process(
            "doctor",
            *("agent", "doctor", "--coordinator", coordinator.address, *arguments),
            env={**fast, "DRUMBEAT_TOKEN": given.text()},
        )
        for given, arguments in ((token, ("-o", "json")), (guess, ()), (token, ("--with", "::")))
    ]
    asked[0].wait()
    document = json.loads(asked[0].stdout)
    mine = [row for row in document["findings"] if row["check"] == "coordinator"]
    assert {row["level"] for row in mine} == {"ok"}
    assert {row["target"] for row in mine} == {coordinator.address}
    assert f"release {VERSION}, as on this host" in [row["text"] for row in mine]
    assert asked[1].wait() == 1
    assert "fail  coordinator" in asked[1].stdout
    assert "\x1b" not in asked[1].stdout
    assert_refused(asked[2], 2, "--with")
    for process in asked:
        shown = process.stdout + process.stderr
        assert not any(secret in shown for secret in (token.secret, guess.secret, "hunter2pass"))


@pytest.mark.slow
async def test_what_is_no_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CALL_S", 0.5)
    ca = CertificateAuthority()
    token = ca.token()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        expect(await problems(address, token=token), FAIL, "no answer", "look at the log")
    expect(await problems(address, token=token), FAIL, "nothing listens", "coordinator serve")
    expect(await problems("no.invalid", token=token), FAIL, "does not resolve", "DNS")
    with Impostor(ca.issue(after=-2 * DAY, until=-DAY)) as expired:
        found = await problems(expired.address, token=token)
        expect(found, FAIL, "has expired at", "has to be renewed")
        assert not expired.heard
    with Impostor(CertificateAuthority(like=ca).issue()) as forged:
        found = await problems(forged.address, token=token)
        expect(found, FAIL, "is not the coordinator that the token is of", "check --coordinator")
        assert not forged.heard


async def test_a_standby_names_the_leader() -> None:
    model = EtcdModel()
    async with coordinator_of(model) as first:
        await first.leads()
        async with coordinator_of(model) as second:
            await second.follows(first)
            plain = await problems(second.address, insecure=True)
            levels = [(each.level, each.text.partition(" ")[0]) for each in plain]
            assert levels == [(WARN, "connections"), (WARN, "a")]
            assert f"{first.address} leads" in plain[1].text
            assert f"--coordinator {second.address},{first.address}" in plain[1].advice
            both = await problems(f"{first.address},{second.address}", insecure=True)
            assert {each.text for each in both} == {"connections are not encrypted"}
    async with follower() as alone:
        alone.names(reason="etcd is away")
        (_, none, *_) = await problems(alone.address, insecure=True)
        assert none.level is FAIL
        assert "etcd is away" in none.text
        assert "repair etcd" in none.advice


@asynccontextmanager
async def answering(
    *metadata: tuple[str, str], status: int = 1, wait_s: float = 0
) -> AsyncIterator[str]:
    """Serve as a coordinator that lets everyone in, and sends this with it."""

    class Fake(grpc.GenericRpcHandler):
        def service(self, call: Any) -> Any:
            is_health = "Health" in call.method
            return grpc.unary_unary_rpc_method_handler(check if is_health else refuse)

    async def check(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(wait_s)
        return health_pb2.HealthCheckResponse(status=status).SerializeToString()

    async def refuse(_: bytes, context: Any) -> None:
        await context.send_initial_metadata(metadata)
        await context.abort(grpc.StatusCode.NOT_FOUND, "there is no run")

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Fake(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("given", "level", "text", "advice"),
    [
        ({"metadata": ((VERSION_KEY, "9.9.9"),)}, WARN, "release 9.9.9", "install the same"),
        ({"metadata": ((CLOCK_KEY, "1000000000"),)}, WARN, "differ by", "chrony"),
        ({"status": 2}, FAIL, "decides nothing", "look at the log"),
        ({"wait_s": 0.03}, WARN, "a call takes", "place it nearer"),
        ({"wait_s": 2.0}, FAIL, "its health check fails", "look at the log"),
    ],
    ids=["release", "clock", "journal", "latency", "health"],
)
async def test_a_coordinator_that_differs_or_is_slow(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], level: str, text: str, advice: str
) -> None:
    monkeypatch.setattr(doctor, "SLOW_S", 0.025 if "wait_s" in given else 5.0)
    monkeypatch.setattr(doctor, "CALL_S", 1.0)
    async with answering(*given.pop("metadata", ()), **given) as address:
        plain, *found = await problems(address, insecure=True)
    assert "not encrypted" in plain.text
    expect(found, level, text, advice)
