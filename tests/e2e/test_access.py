"""Who is let in, as users live it: with real coordinators, agents, workers and operators."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest

from drumbeat.access.token import Role, parse_token
from tests.support.cluster import LOOPBACK, exit_all
from tests.support.launches import HEAD
from tests.support.processes import assert_refused
from tests.support.status import kind

if TYPE_CHECKING:
    from typing import Any

    from tests.support.cluster import Cluster, Coordinator

pytestmark = pytest.mark.e2e

JOIN_LINE = r"^  (agent join --coordinator \S+ --token-file (\S+)) train\.py$"
NO_TOKEN_LINE = r"^  coordinator token create --role join$"
OTHER_USER = 65534
DRUMBEAT = (sys.executable, "-m", "drumbeat")


def shown(process: psutil.Process) -> bytes:
    """What other processes read of one, its arguments and variables."""
    found = b""
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):  # it has just ended
            found += Path(f"/proc/{process.pid}/{name}").read_bytes()
    return found


def files_with(secret: str, folder: Path) -> set[str]:
    """Names of the files below a folder that have a secret."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in paths if secret.encode() in path.read_bytes()}


def audited(coordinator: Coordinator, event: str) -> list[dict[str, Any]]:
    """The lines of a kind in a coordinator's log."""
    return [line for line in coordinator.process.log_lines() if line["event"] == event]


def test_the_line_in_a_log_joins_a_machine_and_the_log_has_no_secret(
    cluster: Cluster,
) -> None:
    """So do the same token as a variable and in a file, each in a run of its own."""
    coordinator = cluster.coordinator("--host", "0.0.0.0", "--http-port", "0")
    line, file = coordinator.process.wait_for_line(JOIN_LINE).groups()
    text = Path(file).read_text().strip()
    secret = parse_token(text).secret
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    server = cluster.worker_server()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    typed = f"exec {line} {' '.join(server.command)}"
    agents = [
        cluster.command("typed", "/bin/sh", "-c", typed, env={"PATH": path}),
        cluster.agent(
            *server.command, coordinator=coordinator, run_id="v", env={"DRUMBEAT_TOKEN": text}
        ),
        cluster.agent(
            *("--token-file", cluster.private_file("token", f"{text}\n"), *server.command),
            coordinator=coordinator,
            run_id="f",
        ),
    ]
    workers = server.wait_for(3)
    processes = cluster.strays()
    assert len(processes) == 1 + 3 * 3
    assert [each for each in processes if secret.encode() in shown(each)] == []
    assert not any("DRUMBEAT_TOKEN" in worker.environment for worker in workers)
    assert files_with(secret, cluster.directory) == {"join.token", "token"}
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    assert not any(secret in process.log() for process in (*agents, coordinator.process))
    assert "#code=" not in coordinator.process.stdout


def test_the_token_to_join_with_stays_the_same_until_it_is_revoked(cluster: Cluster) -> None:
    """That ends those that joined with it, and no others."""
    coordinator = cluster.coordinator("--host", "0.0.0.0")
    file = coordinator.process.wait_for_line(JOIN_LINE)[2]
    text = Path(file).read_text().strip()
    ours, others = (cluster.job(coordinator=coordinator, run_id=name) for name in ("a", "b"))
    leaving = ours.join("--token-file", cluster.private_file("token", text))
    staying = others.join()
    (left,), (stayed,) = ours.server.wait_for(1), others.server.wait_for(1)
    coordinator.kill()
    coordinator.restart()
    assert coordinator.process.wait_for_line(JOIN_LINE)[2] == file
    assert Path(file).read_text().strip() == text
    token_id = parse_token(text).token_id
    revoked = coordinator.operate("token", "revoke", token_id)
    assert revoked.stdout == f"coordinator: join token {token_id} is revoked"
    assert_refused(leaving, 2, token_id, "revoked")
    left.wait_gone()
    late = ours.join("--token", text)
    assert_refused(late, 2, token_id, "revoked")
    assert not stayed.is_gone
    coordinator.kill()
    coordinator.restart()
    coordinator.process.wait_for_line(NO_TOKEN_LINE)
    assert text not in coordinator.process.stdout
    exit_all([stayed])
    assert staying.wait() == 0


def test_a_role_allows_what_it_says_and_each_call_and_refusal_is_audited(
    cluster: Cluster,
) -> None:
    coordinator = cluster.coordinator()
    job = cluster.job(coordinator=coordinator, run_id="exp2")
    agent = job.join()
    workers = job.server.wait_for(1)
    made = coordinator.operate("token", "create", "--role", "join", "--run-id", "exp1")
    bound, view = parse_token(made.stdout), coordinator.create_token(Role.VIEW)
    wrong_run = job.join("--token", bound.text())
    wrong_role = job.join("--token", view.text())
    reader = {"DRUMBEAT_TOKEN": view.text()}
    looked = coordinator.operate("token", "list", env=reader)
    admin = {"DRUMBEAT_TOKEN": coordinator.create_token(Role.ADMIN).text()}
    reset = coordinator.operate("reset-limits", "--run-id", "exp2", env=admin)
    listed = coordinator.operate("token", "list", env=admin)

    assert_refused(wrong_run, 2, bound.token_id, "the run exp1 only")
    assert_refused(wrong_role, 2, view.token_id, "needs the role admin or join")
    assert_refused(looked, 2, view.token_id, "needs the role admin")
    assert reset.stdout == "coordinator: run exp2: learned limits forgotten: 0"
    assert [row.split()[1] for row in listed.stdout.splitlines()[1:]] == ["join", "view", "admin"]

    called = [(line["method"], line["result"]) for line in audited(coordinator, "control call")]
    assert called == [
        *[("CreateToken", "OK")] * 3,
        ("ResetLimits", "OK"),
        ("ListTokens", "OK"),
    ]
    assert audited(coordinator, "control call")[0]["token.id"] == bound.token_id
    refused = {line["token.id"]: line for line in audited(coordinator, "caller refused")}
    assert set(refused) == {bound.token_id, view.token_id}
    assert refused[bound.token_id]["peer"] == LOOPBACK
    assert not any(token.secret in coordinator.process.log() for token in (bound, view))
    told = [(kind(event), event.caller) for event in coordinator.run("exp2").history]
    assert ("access refused", bound.token_id) in told
    assert ("limits reset", parse_token(admin["DRUMBEAT_TOKEN"]).token_id) in told
    exit_all(workers)
    assert agent.wait() == 0


def test_an_expired_token_brings_back_who_was_there_and_lets_no_other_in(
    cluster: Cluster,
) -> None:
    """Also to a coordinator that was not there when it expired."""
    coordinator = cluster.coordinator()
    job = cluster.job(coordinator=coordinator)
    first = coordinator.create_token()
    agent = job.join("--token-file", cluster.private_file("token", first.text()))
    workers = job.server.wait_for(1)
    brief = coordinator.create_token(ttl_s=1)
    cluster.private_file("token", brief.text())
    late = cluster.job(coordinator=coordinator, run_id="other")
    coordinator.kill()
    coordinator.restart()
    expired = coordinator.wait_for_token(brief, lambda token: not token.time_left.ToNanoseconds())
    assert not expired.is_revoked
    agent.wait_for_line("coordinator back")
    refused = late.join("--token", brief.text())
    assert_refused(refused, 2, f"its token {brief.token_id} has expired")
    assert not workers[0].is_gone
    exit_all(workers)
    assert agent.wait() == 0


def test_the_coordinators_user_needs_no_token_wherever_the_state_is(cluster: Cluster) -> None:
    """Neither has to have the variables of the other."""
    homes = [cluster.directory / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    ours, theirs = (
        {"HOME": str(home), "XDG_STATE_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        for home in homes
    )
    temporary = cluster.process("temporary", "coordinator", "serve", "--port", "0", env=ours)
    port = temporary.wait_for_line(r"coordinator ready at \S+:(\d+)$")[1]
    server = cluster.worker_server()
    at = ("--coordinator", f"localhost:{port}")
    agent = cluster.agent(*at, *server.command, env=theirs)
    exit_all(server.wait_for(1))
    assert agent.wait() == 0
    assert "join a machine with" not in temporary.stdout
    assert "warning" not in temporary.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_host_is_refused_and_reads_nothing(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    token = coordinator.create_token()
    cluster.directory.chmod(0o755)
    script = cluster.directory / "train.py"
    script.touch()
    secrets = [*coordinator.state_dir.iterdir(), cluster.private_file("token", token.text())]
    other = ("setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups")
    # So that Python is found, which may lie in the home of root.
    able = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", *DRUMBEAT)
    at = ("--coordinator", coordinator.address)
    reading = cluster.command("reader", *other, "cat", *map(str, secrets))
    joining = cluster.command("other", *other, *able, "agent", "join", *at, str(script))
    listing = cluster.command("lister", *other, *able, "coordinator", "token", "list", *at)
    for process in (joining, listing):
        assert_refused(process, 2, "a token is needed", "another user's", "token create")
    assert reading.wait() == 1
    assert reading.stdout == ""
    assert reading.stderr.count("Permission denied") == len(secrets) >= 4


def test_a_job_of_a_program_is_let_in_by_its_token(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    token = coordinator.create_token(run_id="run")
    program = """
        from pathlib import Path

        path = sys.argv[2]
        own = {"coordinator": sys.argv[1], "run_id": "run"}

        def work():
            return "DRUMBEAT_TOKEN" in os.environ

        given = config(1, token=Path(path).read_text(), **own)
        assert Path(path).read_text().split(".")[3] not in repr(given)
        assert not any(drumbeat.launch(given, work)())
        own["run_id"] = "other"
        try:
            drumbeat.launch(config(1, token_file=path, **own), work)()
        except drumbeat.agent.errors.AccessRefused as error:
            assert "the run run only" in str(error), error
        else:
            raise AssertionError("it is let in")
        """
    path = cluster.private_file("token", token.text())
    process = cluster.script(HEAD + dedent(program), coordinator.address, path)
    assert process.wait() == 0, process.log()


def test_without_authentication_each_start_warns_and_plaintext_is_agreed_on(
    cluster: Cluster,
) -> None:
    """Agents of the same user on the same host need no option, all others do."""
    coordinator = cluster.coordinator("--insecure", "--host", "0.0.0.0")
    job = cluster.job(coordinator=coordinator)
    agent = job.join("--insecure", env={"HOME": str(cluster.directory)})
    exit_all(job.server.wait_for(1))
    assert agent.wait() == 0
    local = cluster.job(coordinator=coordinator, run_id="local")
    agent = local.join()
    exit_all(local.server.wait_for(1))
    assert agent.wait() == 0
    coordinator.kill()
    coordinator.restart()
    (warning,) = [line for line in coordinator.process.log_lines() if line["level"] == "warning"]
    assert "nothing is encrypted" in warning["event"]
    assert "join a machine" not in coordinator.process.stdout
