"""What do 1,000 runs that have ended cost the next start, or the next leader?

Each of them lasted 72 hours with a restart in each, and 20 others like them are live, each with
the records of hours since its last snapshot. Beside it stands the same without ended runs.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import LOOPBACK, STEP_S, BenchmarkError, Question, Scene
from bench.recovery.failover import MEMBERS, TTL_S, on_etcd
from drumbeat.coordinator.access.calls import call_channel
from drumbeat.coordinator.command.archiving.cluster import EtcdPlace
from drumbeat.coordinator.command.archiving.state_directory import StateDirectory
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.model import Verdict, VerdictCause
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import CallFailed
from drumbeat.coordinator.journal.archive import Archive
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.observe.goodput.stretches import Marks, ProgressNoted
from drumbeat.v1 import query_pb2, query_pb2_grpc
from tests.support.etcd import EtcdCluster
from tests.support.stories import lead
from tests.support.world import a_spec, an_agent

if TYPE_CHECKING:
    from drumbeat.coordinator.journal.journal import Journal

ENDED, LIVE = 1_000, 20
HOURS = 72
RECORDS_SINCE_SNAPSHOT = 900  # of each live run, one a minute
PREFIX = "bench"
LOOK_AGAIN_S = 0.005


def a_run(run_id: str, *, is_ended: bool) -> RunState:
    """Return a run of two agents with a restart in each hour, and its progress in each minute."""
    state = RunState.created(rec.RunCreated(run_id=run_id, spec=a_spec(2, restarts_max=HOURS)))
    agents = [an_agent(name) for name in ("a", "b")]
    for agent in agents:
        state.apply(rec.AgentAdmitted(agent=agent, at_s=1.0))
    for hour in range(HOURS):
        at_s = hour * 3600.0 + 2.0
        if hour:
            cause = rec.RoundEnd.WORKER_FAILED
            state.apply(rec.RoundEnded(cause=cause, reason="rank 1 on a failed", at_s=at_s))
        state.apply(
            rec.RoundStarted(
                round_id=hour,
                participants=tuple(agent.incarnation for agent in agents),
                master_addr="10.0.0.1",
                master_port=20_000 + hour,
                reason="rank 1 on a failed",
                closing="2 of 2 agents are there",
                at_s=at_s + 1.0,
            )
        )
        for minute in range(60):
            state.apply(progress(at_s + 1.5 + 59.0 * minute))
    if is_ended:
        verdict = Verdict(cause=VerdictCause.SUCCEEDED, reason="", restart_count=0, round_id=71)
        state.apply(rec.RunEnded(verdict=verdict, at_s=HOURS * 3600.0 + 10.0))
        state.apply(rec.MembersForgotten())
    return state


def progress(at_s: float) -> ProgressNoted:
    """Return what is journaled in each minute."""
    began = int(at_s * 1e9)
    return ProgressNoted(marks=Marks(began=began, step_first=0, step=60), at_s=at_s)


def archive(ended: int) -> Archive:
    """Return a journal of so many ended runs, and the live ones."""
    live = [a_run(f"live{number}", is_ended=False) for number in range(LIVE)]
    runs = live + [a_run(f"ended{number}", is_ended=True) for number in range(ended)]
    return Archive(clock=HOURS * 3600.0 + 20.0, wall=time.time(), term=1, runs=runs)


async def write_more(journal: Journal) -> None:
    """Write what has come of live runs since their snapshots, and give the journal back."""
    offset = await journal.load()
    for number in range(RECORDS_SINCE_SNAPSHOT):
        now = time.monotonic() + offset
        record = progress(HOURS * 3600.0 + 20.0 + number)
        effects = [fx.Persist(run_id=f"live{each}", record=record) for each in range(LIVE)]
        await journal.write(effects, now=now)
    await journal.close()


async def fill_directory(directory: Path, ended: int) -> None:
    await StateDirectory(directory).write(archive(ended))
    await write_more(SqliteJournal(directory))


async def fill_etcd(url: str, ended: int) -> None:
    from drumbeat.coordinator.journal.etcd.client import EtcdClient  # noqa: PLC0415 - it needs an extra

    client, keys = EtcdClient(parse_etcd_address(url)), Keys(PREFIX)
    try:
        held = archive(ended)
        held.term = 0  # no agent has seen one
        await EtcdPlace(url, client, keys).write(held)
        await write_more(EtcdJournal(client, keys, term=await lead(client, keys)))
        for pair in (await client.read(keys.leader, "")).pairs:
            from drumbeat.coordinator.journal.etcd.model import Delete, Transaction  # noqa: PLC0415

            await client.commit(Transaction((), (Delete(pair.key),)))
    finally:
        await client.close()


def count_runs(scene: Scene, port: int) -> int:
    """Return how many runs are on a page of one. Raises ``CallFailed`` while it does not lead."""
    with call_channel(scene.access, f"{LOOPBACK}:{port}", use_proxy=False) as (channel, caller):
        stub = query_pb2_grpc.QueryServiceStub(channel)
        page = stub.ListRuns(
            query_pb2.ListRunsRequest(page_size=1), timeout=STEP_S, metadata=caller
        )
        return len(page.runs)


def start(ended: int) -> float:
    with Scene() as scene:
        asyncio.run(fill_directory(scene.directory / "state", ended))
        began = time.monotonic()
        _, port = scene.start_coordinator()
        took = time.monotonic() - began
        if not count_runs(scene, port):
            raise BenchmarkError("the coordinator knows no run")
        return took


def failover(ended: int) -> float:
    with ExitStack() as stack:
        scene = stack.enter_context(Scene())
        etcd = stack.enter_context(EtcdCluster(MEMBERS, is_durable=True))
        asyncio.run(fill_etcd(etcd.url(PREFIX), ended))
        leader, _ = on_etcd(scene, etcd, PREFIX)
        _, second = on_etcd(scene, etcd, PREFIX)
        began = time.monotonic()
        leader.kill()
        while time.monotonic() - began < STEP_S:
            with suppress(CallFailed):  # it names the one that was killed, until its lease ends
                if not count_runs(scene, second):
                    raise BenchmarkError("the next leader knows no run")
                return time.monotonic() - began
            time.sleep(LOOK_AGAIN_S)
        raise BenchmarkError("none leads")


QUESTIONS = (
    Question(
        name="start_ended_runs",
        text=f"a coordinator starts on SQLite, {LIVE} live runs and {ENDED} ended ones of 72 h",
        unit="s",
        repeats=5,
        ours=partial(start, ENDED),
        torchrun=partial(start, 0),
        rival="no ended runs",
    ),
    Question(
        name="failover_ended_runs",
        text=f"the leader is killed, time to live {TTL_S} s, etcd of {MEMBERS}: the next one "
        f"serves, {LIVE} live runs and {ENDED} ended ones of 72 h",
        unit="s",
        repeats=5,
        ours=partial(failover, ENDED),
        torchrun=partial(failover, 0),
        rival="no ended runs",
    ),
)
