"""Shell. The rest of a failure report that was too long for an ``Exit``."""

from __future__ import annotations

import asyncio

import structlog

from agent.session.transport import Connection, TransportError
from drumbeat.v1 import run_pb2, session_pb2

log = structlog.get_logger()

# The workers are stopped by then, and what is known already is shown in any case.
FETCH_TIMEOUT_S = 5.0


def is_to_be_completed(message: session_pb2.Exit) -> bool:
    """Return whether this agent shall ask for the rest of the report, and show it."""
    return message.is_report_cut and message.shows_report


async def complete(message: session_pb2.Exit, connection: Connection, *, run_id: str) -> None:
    """Put the whole report in, if it can be had."""
    request = run_pb2.GetVerdictRequest(run_id=run_id, generation=message.generation)
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            verdict = await connection.verdict(request)
    except (TransportError, TimeoutError) as error:
        reason = str(error) or f"no answer within {FETCH_TIMEOUT_S:g} s"
        log.warning("rest of the failure report not fetched", reason=reason)
        return
    message.verdict.CopyFrom(verdict)
    message.is_report_cut = False
