"""Which agents ask for the rest of a report, and what they show if they can't have it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.core.model import Exit
from agent.session.session import desired_from
from agent.session.transport import TransportError
from agent.workers.failures.report import render_report
from agent.workers.failures.verdict import complete, is_to_be_completed
from drumbeat.v1 import failure_pb2, query_pb2, session_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

WHOLE = failure_pb2.Verdict(
    reason="too bad",
    report=failure_pb2.FailureReport(
        root_causes=[failure_pb2.FailureRecord(host="h", message="all of it")]
    ),
)


class FakeConnection:
    """A coordinator that has, or has not, the rest."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[query_pb2.GetReportRequest] = []
        self._error = error

    async def address(self) -> str:
        return "10.0.0.1"

    async def verdict(self, request: query_pb2.GetReportRequest) -> failure_pb2.Verdict:
        self.asked.append(request)
        if self._error is not None:
            raise self._error
        return WHOLE

    async def open(
        self,
        requests: AsyncGenerator[session_pb2.AgentReport, None],
        take: Callable[[session_pb2.Directive], None],
    ) -> None:
        raise NotImplementedError

    async def report(
        self,
        requests: AsyncGenerator[session_pb2.ReportFailuresRequest, None],
        take: Callable[[session_pb2.ReportFailuresResponse], None],
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class SilentConnection(FakeConnection):
    """A coordinator that never answers."""

    async def verdict(self, request: query_pb2.GetReportRequest) -> failure_pb2.Verdict:
        self.asked.append(request)
        await asyncio.Event().wait()
        return WHOLE


def an_exit(*, is_cut: bool, shows: bool) -> session_pb2.Exit:
    return session_pb2.Exit(
        verdict=failure_pb2.Verdict(reason="too bad"),
        is_report_cut=is_cut,
        shows_report=shows,
        shown_on="first-host",
        generation=3,
    )


def shown(message: session_pb2.Exit) -> str:
    desired = desired_from(session_pb2.DesiredState(exit=message))
    assert desired is not None
    assert isinstance(desired, Exit)
    assert desired.report is not None
    return render_report(desired.report, "train.py")


async def test_who_shows_a_cut_report_asks_for_all_of_it() -> None:
    message, connection = an_exit(is_cut=True, shows=True), FakeConnection()
    assert is_to_be_completed(message)
    await complete(message, connection, run_id="r")
    assert connection.asked == [query_pb2.GetReportRequest(run_id="r", generation=3)]
    assert "all of it" in shown(message)
    assert "Cut" not in shown(message)


@pytest.mark.parametrize(("is_cut", "shows"), [(False, True), (True, False), (False, False)])
def test_no_other_agent_asks(is_cut: bool, shows: bool) -> None:
    message = an_exit(is_cut=is_cut, shows=shows)
    assert not is_to_be_completed(message)
    assert ("on the console of the agent on first-host" in shown(message)) == is_cut


@pytest.mark.parametrize("error", [TransportError("gone"), TimeoutError()])
async def test_what_is_known_is_shown_if_the_rest_cannot_be_had(error: Exception) -> None:
    message = an_exit(is_cut=True, shows=True)
    await complete(message, FakeConnection(error), run_id="r")
    assert "too bad" in shown(message)
    assert "did not answer" in shown(message)


async def test_a_coordinator_that_says_nothing_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.workers.failures.verdict.FETCH_TIMEOUT_S", 0.0)
    connection = SilentConnection()
    message = an_exit(is_cut=True, shows=True)
    await complete(message, connection, run_id="r")
    assert "did not answer" in shown(message)
