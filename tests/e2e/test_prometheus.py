"""A real Prometheus scrapes a coordinator and an agent as the example of deploy/ has it."""

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from drumbeat.access.token import Role
from tests.support.certificates import CertificateAuthority
from tests.support.pages import Site, bearer, site
from tests.support.waiting import MS

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="prometheus is not installed (Debian: apt install prometheus)",
)
DEPLOY = Path(__file__).parents[2] / "deploy/prometheus"
DEADLINE_S = 30_000 * MS
TRAIN = """
import time, worker_sdk
for step in range(10_000):
    worker_sdk.heartbeat(step=step)
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def fetched(url: str | Request, context: ssl.SSLContext | None = None) -> bytes:
    with urlopen(url, timeout=DEADLINE_S, context=context) as response:
        return bytes(response.read())


@asynccontextmanager
async def running(log: Path, *command: str, **more: Any) -> AsyncIterator[None]:
    """Run a process while the context is open, and write what it says to a file."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=file, stderr=subprocess.STDOUT, **more
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def agent_of(served: Site, port: int, directory: Path) -> list[str]:
    (directory / "train.py").write_text(TRAIN)
    token = directory / "join-token"
    assert served.identity is not None
    made = dataclasses.replace(await served.token(Role.JOIN), ca=served.identity.keys[0])
    token.write_text(made.text())
    token.chmod(0o600)
    authority, folder = CertificateAuthority(), directory / "prometheus"
    (folder / "drumbeat-agent-ca.pem").write_bytes(authority.pem)
    cert, key = authority.issue("127.0.0.1").write(directory)
    secret = folder / "drumbeat-agent-token"
    secret.write_text("of-all-agents\n")
    secret.chmod(0o600)
    return [
        sys.executable, "-m", "drumbeat.agent", "join", "--coordinator", f"127.0.0.1:{served.port}",
        "--token-file", str(token), "--run-id", "job", "--nproc-per-node", "2",
        "--metrics-port", str(port), "--metrics-cert", cert, "--metrics-key", key,
        "--metrics-token-file", str(secret), str(directory / "train.py"),
    ]  # fmt: skip


async def prometheus_of(served: Site, agent_port: int, directory: Path) -> tuple[list[str], str]:
    """Return the command of a Prometheus with the example's configuration, and where it is."""
    shutil.copytree(DEPLOY, directory)
    file = directory / "prometheus.yml"
    text = file.read_text().replace("15s", "200ms")
    targets = f'"127.0.0.1:{served.page.port}"'
    text = text.replace('"head1:29480", "head2:29480"', targets)
    file.write_text(text)
    agents = [{"targets": [f"127.0.0.1:{agent_port}"]}]
    (directory / "drumbeat-agents-1.yml").write_text(json.dumps(agents))
    # With a newline, as a shell writes it.
    (directory / "drumbeat-token").write_text(f"{(await served.token(Role.VIEW)).text()}\n")
    kept = (directory.parent / "ca.key").read_bytes()
    authority = x509.load_pem_x509_certificates(kept)[0]
    (directory / "drumbeat-ca.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    where = f"127.0.0.1:{free_port()}"
    assert PROMETHEUS is not None
    command = [
        PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={where}",
    ]  # fmt: skip
    return command, f"http://{where}"


async def asked(where: str, query: str) -> dict[str, float]:
    """Return the values of a query by job; none while Prometheus does not answer."""
    try:
        body = await asyncio.to_thread(fetched, f"{where}/api/v1/query?query={quote(query)}")
    except OSError:
        return {}
    found = json.loads(body)["data"]["result"]
    return {each["metric"].get("job", ""): float(each["value"][1]) for each in found}


async def until(where: str, query: str, wanted: dict[str, float]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await asked(where, query) != wanted:  # noqa: ASYNC110 - it tells no one what it has scraped
            await asyncio.sleep(20 * MS)


def check(body: bytes) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.slow
async def test_prometheus_scrapes_coordinator_and_agent(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DRUMBEAT_")}
    port = free_port()
    async with site(tmp_path) as served:
        # It looks for its targets five seconds after its start, so it is started first.
        command, where = await prometheus_of(served, port, tmp_path / "prometheus")
        agent = await agent_of(served, port, tmp_path)
        async with (
            running(tmp_path / "prometheus.log", *command),
            running(tmp_path / "agent.log", *agent, env=environment),
        ):
            coordinator, of_agent = "drumbeat-coordinator", "drumbeat-agent"
            await until(where, "up", {coordinator: 1.0, of_agent: 1.0})
            await until(where, 'drumbeat_run_workers{run_id="job"}', {coordinator: 2.0})
            await until(where, "drumbeat_agent_workers", {of_agent: 2.0})
            await until(where, "max(drumbeat_worker_step) > bool 3", {"": 1.0})
            headers = {"Authorization": "Bearer of-all-agents"}
            url = f"https://127.0.0.1:{port}/metrics"
            context = ssl.create_default_context(
                cafile=tmp_path / "prometheus/drumbeat-agent-ca.pem"
            )
            check(await asyncio.to_thread(fetched, Request(url, headers=headers), context))
            headers = bearer(await served.token(Role.VIEW))
            check((await served.browser().get("/metrics", headers=headers)).content)
