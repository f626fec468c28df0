"""Shell. Accusations: a worker says that a host is bad, e.g. that it computes wrong results.

One is a line in a pipe that the agent reads. Nothing here waits, and nothing raises.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from worker_sdk.board.board import open_file
from worker_sdk.board.layout import SUSPECTS_FILE
from worker_sdk.errors import checked_rank
from worker_sdk.runtime import directory, start

log = logging.getLogger("worker_sdk")

# A line is written as a whole only if it is no longer than a pipe takes at once.
REASON_CHARACTERS_MAX = 256


def suspect_host(reason: str, rank: int | None = None) -> None:
    """Accuse the host of ``rank``, or this worker's own. Never raises, never waits.

    It ends nothing. For `agent join --exclude-after` the host counts as blamed for this round.
    """
    try:
        if (line := _line(reason, rank)) and (place := directory()):
            pipe = open_file(place, SUSPECTS_FILE)
            try:
                os.write(pipe, line)
            finally:
                os.close(pipe)
            start().kick()
    except Exception as error:  # noqa: BLE001 - training goes on, whatever was given
        log.warning("the agent does not learn that a host is suspected: %s", error)


def _line(reason: Any, rank: Any) -> bytes:
    given = str(reason)[:REASON_CHARACTERS_MAX]
    if rank is not None and checked_rank(rank) is None:
        log.warning("suspect_host: rank is %r, allowed is None or a rank from 0", rank)
        return b""
    return json.dumps([checked_rank(rank), given]).encode() + b"\n"
