"""Spans on their way to a collector, be it there, away, silent or mad."""

import asyncio
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from drumbeat import VERSION
from drumbeat.coordinator.core.effects import Persist
from drumbeat.coordinator.core.run.records import Record, RunCreated
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import TracesUnusable
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.observe.tracing import exporter
from drumbeat.coordinator.observe.tracing.exporter import Tracing
from tests.support.otlp import DEADLINE_S, Collector, collecting
from tests.support.waiting import MS, wait_until
from tests.support.world import Story, a_running_story

SPANS = 4  # of a story
OTLP_LOGGER = "opentelemetry.exporter.otlp.proto.grpc.exporter"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let spans leave soon, and nothing be waited for that is not there."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    monkeypatch.setattr(exporter, "CLOSE_WITHIN_S", 100 * MS)
    # It lets the same reason pass once in 20 seconds, be it of another test.
    monkeypatch.setattr(logging.getLogger(OTLP_LOGGER), "filters", [])


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@asynccontextmanager
async def tracing_to(endpoint: str) -> AsyncIterator[Tracing]:
    tracing = Tracing(endpoint)
    try:
        yield tracing
    finally:
        await tracing.close()


def a_failed_story(run_id: str = "run") -> Story:
    """Return a story whose run failed: a start, a round, the end and the run are told of it."""
    story = Story()
    story.join("a", run_id=run_id)
    story.obey("a")
    story.advance(5.0)
    story.record("a", message="ValueError: nan")
    story.fail("a")
    story.obey("a")
    story.advance(60.0)
    return story


def tell(tracing: Tracing, story: Story) -> None:
    """Let a story become durable."""
    observe = tracing.observer(lambda: story.now)
    replay(story, observe)


def replay(story: Story, observe: Callable[[RunState, Record], None]) -> None:
    states: dict[str, RunState] = {}
    for key, record in story.journal:
        if isinstance(record, RunCreated):
            states[key] = RunState.created(record)
        else:
            observe(states[key], record)
            states[key].apply(record)


async def heard(collector: Collector, count: int) -> list[Any]:
    await wait_until(lambda: len(collector.spans) >= count, DEADLINE_S)
    return [each.span for each in collector.spans]


async def test_a_collector_is_told_with_wall_time_causes_and_who_tells(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=we")
    async with tracing_to(collector.endpoint) as tracing:
        before = time.time()
        tell(tracing, a_failed_story())
        await heard(collector, SPANS)
        assert tracing.dropped == 0
    (run,), (round_,) = collector.named("run"), collector.named("round")
    assert abs(run.span.end_time_unix_nano / 1e9 - before) < 60.0
    assert run.took_s == pytest.approx(round_.took_s, abs=60.0)
    assert run.attributes["drumbeat.run.cause"] == "WORKER_FAILED"
    assert "ValueError: nan" in run.error
    (failure,) = run.span.events
    assert failure.name == "exception"
    assert [len(link.trace_id) for link in round_.span.links] == [16, 16]
    resource = run.resource
    assert resource["service.name"] == "drumbeat-coordinator"
    assert resource["service.version"] == VERSION
    assert resource["deployment.environment.name"] == "prod"
    assert collector.metadata[0]["x-tenant"] == "we"


async def test_a_retold_span_is_the_same_span(collector: Collector) -> None:
    story = a_failed_story()
    spans: list[Any] = []
    for times in (1, 2):
        async with tracing_to(collector.endpoint) as tracing:
            tell(tracing, story)
            spans = await heard(collector, times * SPANS)
    ids = [(span.name, span.trace_id, span.span_id, span.parent_span_id) for span in spans]
    assert sorted(ids[:SPANS]) == sorted(ids[SPANS:])
    assert len(set(ids)) == SPANS


async def test_a_journal_that_is_read_again_is_not_told_again(
    tmp_path: Path, collector: Collector
) -> None:
    story = a_failed_story()
    effects = [Persist(run_id=key, record=record) for key, record in story.journal]
    journal = SqliteJournal(tmp_path)
    async with tracing_to(collector.endpoint) as tracing:
        await journal.load()
        journal.runs.on_record = tracing.observer(lambda: story.now)
        await journal.write(effects, now=story.now)
        await journal.close()
        again = SqliteJournal(tmp_path)
        await again.load()
        assert list(again.runs.states) == ["run"]
        await again.close()
        await heard(collector, SPANS)
    assert len(collector.spans) == SPANS


async def test_a_collector_that_comes_late_is_told_from_then_on() -> None:
    with collecting() as gone:
        port = gone.port
    with structlog.testing.capture_logs() as logged:
        async with tracing_to(f"http://127.0.0.1:{port}") as tracing:
            tell(tracing, a_failed_story())
            await wait_until(lambda: tracing.dropped == SPANS, DEADLINE_S)
            with collecting(port) as collector:

                def is_told() -> bool:
                    tell(tracing, a_failed_story())
                    return bool(collector.spans)

                await wait_until(is_told, DEADLINE_S)
                await wait_until(lambda: len(logged) >= 2, DEADLINE_S)
    away, again, *_ = logged
    assert away["event"] == "traces do not reach their collector"
    assert "UNAVAILABLE" in away["reason"] or "DEADLINE" in away["reason"]
    assert again["event"] == "traces reach their collector again"
    assert again["spans_lost"] >= SPANS


def _refuse(context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")
    raise AssertionError


def _hang(context: grpc.ServicerContext) -> bytes:
    while context.is_active():
        time.sleep(5 * MS)
    return b""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(_refuse, "UNAUTHENTICATED"), (_hang, "DEADLINE"), (lambda _context: b"\xff\xff", "INTERNAL")],
)
async def test_a_collector_that_does_not_take_spans_costs_them_and_nothing_else(
    collector: Collector, answer: Callable[[grpc.ServicerContext], bytes], reason: str
) -> None:
    collector.answer = answer
    with structlog.testing.capture_logs() as logged:
        async with tracing_to(collector.endpoint) as tracing:
            tell(tracing, a_failed_story())
            await wait_until(lambda: tracing.dropped == SPANS, DEADLINE_S)
    assert [each["event"] for each in logged] == [
        "traces do not reach their collector",
        "spans were lost",
    ]
    assert reason in logged[0]["reason"]
    assert logged[1]["spans_lost"] == SPANS


async def test_what_is_no_collector_at_all_costs_nothing_but_spans() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello" * 1000)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, tracing_to(f"http://127.0.0.1:{port_of(server)}") as tracing:
        tell(tracing, a_failed_story())
        await wait_until(lambda: tracing.dropped == SPANS, DEADLINE_S)


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def test_an_endpoint_that_never_answers_keeps_no_one_waiting_and_drops_what_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing = Tracing(f"http://127.0.0.1:{silent.getsockname()[1]}")
        for number in range(10):
            tell(tracing, a_failed_story(f"run-{number}"))
        assert tracing.dropped == 10 * SPANS - 10
        with structlog.testing.capture_logs() as logged:
            async with asyncio.timeout(DEADLINE_S):  # which the exporter's own limit is beyond
                await tracing.close()
    assert logged[-1]["event"] == "spans were lost"
    assert logged[-1]["spans_lost"] == 10 * SPANS


async def test_the_sampler_and_the_switch_of_the_environment_count(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_SDK_DISABLED": "true"}.items():
        with monkeypatch.context() as environment:
            environment.setenv(name, value)
            async with tracing_to(collector.endpoint) as tracing:
                tell(tracing, a_failed_story())
                assert tracing.dropped == 0
    assert collector.spans == []


async def test_a_mistake_in_what_is_told_stops_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("oh")

    async with tracing_to(collector.endpoint) as tracing:
        with monkeypatch.context() as broken, structlog.testing.capture_logs() as logged:
            broken.setattr(exporter, "spans_of", fail)
            tell(tracing, a_running_story(1))
        assert {each["event"] for each in logged} == {"a span could not be told"}


def test_a_missing_package_is_named_with_what_brings_it() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from drumbeat.coordinator.config import CoordinatorConfig\n"
        "from drumbeat.coordinator.errors import MissingExtra\n"
        "from drumbeat.coordinator.cluster.server import Server\n"
        "Server(CoordinatorConfig(), None)  # asks for no traces\n"
        "try: Server(CoordinatorConfig(otlp_endpoint='http://head:4317'), None)\n"
        "except MissingExtra as error: print(error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == (
        "--otlp-endpoint needs the package opentelemetry-exporter-otlp-proto-grpc, "
        "which is not installed "
        "pip install 'drumbeat[otel]'\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "'soon'"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "OTEL_EXPORTER_OTLP_COMPRESSION"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "9", "max_queue_size"),
    ],
)
def test_a_wrong_variable_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracesUnusable, match=r"a variable OTEL_\* .* is wrong: ") as refused:
        Tracing("https://127.0.0.1:1")
    assert told in str(refused.value)


async def test_a_sampler_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "some")
    with structlog.testing.capture_logs() as logged:
        async with tracing_to("https://127.0.0.1:1"):
            pass
    assert [each["reason"] for each in logged] == ["Couldn't recognize sampler some."]
