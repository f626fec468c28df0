"""An agent's metrics over HTTP: what scrapes get, and what they cannot do to the agent."""

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from drumbeat.agent.errors import UsageError
from drumbeat.agent.model.hang import WorkerProgress
from drumbeat.agent.telemetry.facts import StageEnded
from drumbeat.agent.telemetry.metrics.collected import Host
from drumbeat.agent.telemetry.metrics.endpoint import CONNECTIONS_MAX, Endpoint
from drumbeat.agent.telemetry.metrics.guard import Guard
from drumbeat.agent.telemetry.metrics.tally import AgentSnapshot
from drumbeat.agent.telemetry.status import AgentStatus, WorkerStatus
from drumbeat.agent.workers.devices.gpus import Gpu
from drumbeat.model import GroupState, HostMemory, WorkerMemory
from tests.support.agents import CONFIG
from tests.support.certificates import CertificateAuthority
from tests.support.scraped import names, values
from tests.support.waiting import MS, wait_until, wait_until_sync

DEADLINE_S = 10_000 * MS
STATUS = AgentStatus(
    run_id="job",
    name="ali\\ce\n" + "x" * 200,
    pid=1,
    began_at=0.0,
    coordinator="head:1",
    is_connected=True,
    state=GroupState.RUNNING,
    reason="",
    round_id=3,
    group_rank=0,
    workers=tuple(
        WorkerStatus(rank=rank, local_rank=rank, pid=2, started_at=0.0) for rank in range(2)
    ),
)
LOOK = AgentSnapshot(
    status=STATUS,
    role='tr"ain',
    workers_wanted=2,
    counts={
        ("sessions_lost", ""): 1,
        ("rounds", ""): 2,
        ("restarts", "round"): 1,
        ("workers_ended", "failed"): 1,
        ("hangs", "progress"): 3,
    },
    spooled=1,
    standings=(WorkerProgress(local_rank=1, step=7, heartbeat_at=10.0),),
    memory=HostMemory(
        workers=(WorkerMemory(local_rank=1, resident_bytes=5),), used_bytes=14, limit_bytes=16
    ),
)
GPU = Gpu(index=2, uuid="u", name="n", memory_bytes=100, memory_used_bytes=40, pci_address="")


class Scene:
    """An endpoint at a free port, and clients of it."""

    def __init__(self, endpoint: Endpoint, port: int) -> None:
        self.endpoint, self.port = endpoint, port
        self.tls: ssl.SSLContext | None = None

    def _get(self, path: str, headers: dict[str, str], method: str) -> tuple[bytes, str]:
        scheme = "http" if self.tls is None else "https"
        url = f"{scheme}://127.0.0.1:{self.port}{path}"
        request = Request(url, headers=headers, method=method)
        with urlopen(request, timeout=DEADLINE_S, context=self.tls) as response:
            return response.read(), response.headers["Content-Type"]

    async def get(
        self, path: str = "/metrics", method: str = "GET", **headers: str
    ) -> tuple[bytes, str]:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        return await asyncio.to_thread(self._get, path, shown, method)

    async def values(self) -> dict[tuple[str, ...], float]:
        body, _ = await self.get()
        return values(body)


@asynccontextmanager
async def scene(
    look: Callable[[], AgentSnapshot] = lambda: LOOK, gpus: tuple[Gpu, ...] = (), **settings: Any
) -> AsyncIterator[Scene]:
    config = replace(CONFIG, metrics_port="127.0.0.1:0", **settings)
    endpoint = Endpoint(config, look, gpus)
    found = await wait_until(lambda: endpoint._socket, DEADLINE_S)
    assert found is not None
    try:
        yield Scene(endpoint, found.getsockname()[1])
    finally:
        await asyncio.to_thread(endpoint.close)


async def test_a_scrape_tells_how_the_agent_is_and_what_it_has_done() -> None:
    async with scene(gpus=(GPU,)) as made:
        made.endpoint.metrics.take(StageEnded("rendezvous", 0, 1.5))
        found = await made.values()
    assert found["drumbeat_agent_workers",] == 2.0
    assert found["drumbeat_agent_state", "running"] == 1.0
    assert found["drumbeat_agent_connected",] == found["drumbeat_agent_sessions_lost_total",] == 1.0
    assert found["drumbeat_agent_spooled_failure_records",] == 1.0
    assert found["drumbeat_agent_rounds_total",] == 2.0
    assert found["drumbeat_agent_restarts_total", "round"] == 1.0
    assert found["drumbeat_agent_restarts_total", "in_process"] == 0.0
    assert found["drumbeat_agent_workers_ended_total", "failed"] == 1.0
    assert found["drumbeat_agent_hangs_total", "progress"] == 3.0
    assert found["drumbeat_agent_stage_duration_seconds_sum", "rendezvous"] == 1.5
    assert found["drumbeat_worker_step", "1"] == 7.0
    assert found["drumbeat_worker_memory_resident_bytes", "1"] == 5.0
    assert found["drumbeat_agent_memory_used_bytes",] == 14.0
    assert found["drumbeat_agent_memory_limit_bytes",] == 16.0
    assert found["drumbeat_host_gpu_memory_used_bytes", "2"] == 40.0
    assert found["drumbeat_host_memory_available_bytes",] > 0
    assert found["drumbeat_host_cpu_seconds_total", "user"] > 0
    (name,) = (labels for labels in found if labels[0] == "drumbeat_agent_info")
    assert name[1] == "job"
    assert (name[2][:7], len(name[2]), name[3]) == ("ali\\ce\n", 128, 'tr"ain')


async def test_openmetrics_gzip_and_head_are_answered_as_they_are_asked_for() -> None:
    async with scene() as made:
        body, kind = await made.get(Accept="application/openmetrics-text;version=1.0.0,*/*;q=0.1")
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert "drumbeat_worker_step" in names(body)
        packed, _ = await made.get(Accept_Encoding="gzip")
        plain, kind = await made.get()
        ours = plain.partition(b"drumbeat_host")[0]
        assert gzip.decompress(packed).startswith(ours)
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert (await made.get(method="HEAD"))[0] == b""
        with pytest.raises(HTTPError, match="404"):
            await made.get("/")


async def test_clients_that_say_nothing_keep_no_scrape_away_and_are_bounded() -> None:
    async with scene() as made:
        silent = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(30)]
        assert (await made.values())["drumbeat_agent_workers",] == 2.0
        assert len(made.endpoint._open) <= CONNECTIONS_MAX
        for each in silent:
            each.close()


async def test_with_a_certificate_and_a_token_only_those_who_have_it_scrape(
    tmp_path: Path,
) -> None:
    authority = CertificateAuthority()
    cert, key = authority.issue("127.0.0.1").write(tmp_path)
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    files: dict[str, Any] = {
        "metrics_cert": cert,
        "metrics_key": key,
        "metrics_token_file": str(token),
    }
    async with scene(**files) as made:
        made.tls = ssl.create_default_context(cadata=authority.pem.decode())
        body, _ = await made.get(Authorization="Bearer s3cret")
        assert values(body)["drumbeat_agent_workers",] == 2.0
        for given in ("", "Bearer s3cre", "Bearer", "s3cret", "Basic s3cret"):
            with pytest.raises(HTTPError, match="401"):
                await made.get(Authorization=given)
        # Both are replaced without a restart; one that cannot be used keeps scrapes out.
        token.write_text("another")
        other = CertificateAuthority()
        other.issue("127.0.0.1").write(tmp_path)
        made.tls = ssl.create_default_context(cadata=other.pem.decode())
        assert (await made.get(Authorization="Bearer another"))[0]
        silent = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(20)]
        assert (await made.get(Authorization="Bearer another"))[0]
        for each in silent:
            each.close()
        token.chmod(0o644)
        with pytest.raises(HTTPError, match="401"):
            await made.get(Authorization="Bearer another")
        (tmp_path / "tls.crt").write_text("no certificate")
        with pytest.raises(URLError):
            await made.get(Authorization="Bearer another")


def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    cert, key = CertificateAuthority().issue().write(tmp_path)
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o644)
    for files, said in (
        ({"metrics_token_file": str(token)}, "--metrics-token-file"),
        ({"metrics_token_file": "/nowhere"}, "--metrics-token-file /nowhere"),
        ({"metrics_cert": cert, "metrics_key": cert}, f"--metrics-cert {cert} and"),
        ({"metrics_cert": "/nowhere", "metrics_key": key}, "No such file"),
    ):
        with pytest.raises(UsageError, match=said):
            Guard(replace(CONFIG, **files)).check()  # type: ignore[arg-type]


async def test_an_agent_is_asked_no_more_often_than_it_matters() -> None:
    asked = count()

    def look() -> AgentSnapshot:
        next(asked)
        return LOOK

    async with scene(look) as made:
        await asyncio.gather(*(made.get() for _ in range(6)))
    assert next(asked) <= 2


async def test_an_agent_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drumbeat.agent.telemetry.metrics.collected.ANSWER_S", 50 * MS)
    async with scene() as made:
        # The loop is busy until the answer is there.
        with pytest.raises(HTTPError, match="503"):
            made._get("/metrics", {}, "GET")


async def test_a_port_in_use_costs_the_metrics_and_not_the_training() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as logs:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        endpoint = Endpoint(replace(CONFIG, metrics_port=address), lambda: LOOK, ())
        endpoint._thread.join(DEADLINE_S)
        endpoint.close()
    assert [entry["event"] for entry in logs] == ["no metrics served"]
    assert logs[0]["reason"].startswith(f"--metrics-port {address}: ")


def test_a_driver_that_hangs_holds_no_scrape_up() -> None:
    release, asked = threading.Event(), count(1)

    def read() -> tuple[Gpu, ...]:
        next(asked)
        release.wait(DEADLINE_S)
        return (structs.replace(GPU, memory_used_bytes=60),)

    host = Host((GPU,), read)

    def used() -> float:
        return next(v for m, _, v in host.samples() if m.name.endswith("gpu_memory_used_bytes"))

    assert [used() for _ in range(3)] == [40.0] * 3
    assert next(asked) == 2, "it is asked once until it answers"
    release.set()
    wait_until_sync(lambda: used() == 60.0, DEADLINE_S)
    assert host._asking is not None
    host._asking.join(DEADLINE_S)


async def test_an_endpoint_that_was_closed_leaves_nothing_open() -> None:
    async with scene() as made:
        held = socket.create_connection(("127.0.0.1", made.port))
        await made.get()
    assert not made.endpoint._open
    assert not made.endpoint._thread.is_alive()
    held.close()
