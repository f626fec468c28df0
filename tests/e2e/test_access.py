"""Who is let in, as users live it: with real coordinators, agents, workers and operators."""

import contextlib
import os
import stat
import sys
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from drumbeat.access.token import parse_token
from tests.support.cluster import Cluster, exit_all
from tests.support.launches import HEAD
from tests.support.processes import assert_refused

JOIN_LINE = r"^  (agent join --coordinator \S+ --token-file (\S+)) train\.py$"
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
