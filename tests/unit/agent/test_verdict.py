"""Which agents ask for the rest of a report, and what they show if they can't have it."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from drumbeat.agent.core.model import Exit
from drumbeat.agent.failures.report import render_report
from drumbeat.agent.session.session import desired_from
from drumbeat.agent.session.transport import TransportError
from drumbeat.agent.session.verdict import complete, is_to_be_completed
from drumbeat.v1 import failure_pb2, query_pb2, session_pb2

WHOLE = failure_pb2.Verdict(
    reason="too bad",
    report=failure_pb2.FailureReport(
        root_causes=[failure_pb2.FailureRecord(host="h", message="all of it")]
    ),
)


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
    message, ask = an_exit(is_cut=True, shows=True), AsyncMock(return_value=WHOLE)
    assert is_to_be_completed(message)
    await complete(message, ask, run_id="r", key=b"k")
    assert [call.args[0] for call in ask.await_args_list] == [
        query_pb2.GetReportRequest(run_id="r", generation=3, incarnation_key=b"k")
    ]
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
    await complete(message, AsyncMock(side_effect=error), run_id="r", key=b"k")
    assert "too bad" in shown(message)
    assert "did not answer" in shown(message)


async def test_a_coordinator_that_says_nothing_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drumbeat.agent.session.verdict.FETCH_TIMEOUT_S", 0.0)

    async def ask(_request: query_pb2.GetReportRequest) -> failure_pb2.Verdict:
        await asyncio.Event().wait()
        return WHOLE

    message = an_exit(is_cut=True, shows=True)
    await complete(message, ask, run_id="r", key=b"k")
    assert "did not answer" in shown(message)
