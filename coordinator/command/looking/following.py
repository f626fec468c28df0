"""Shell. Follows the events of a run through restarts of its coordinator. Blocks."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from coordinator.command.looking.reading import Reader, channel_of
from coordinator.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.command.requests import Request
    from drumbeat.v1 import query_pb2 as pb

# Between two tries to reach a coordinator that was there before.
RETRY_LEAST_S, RETRY_MOST_S = 0.1, 2.0
_EXIT_NOT_REACHED = 3


class Patience:
    """Waits for a coordinator that was reached once, and says so once."""

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._is_known = False
        self._delay_s = 0.0

    def reached(self) -> None:
        """Take note that it answers."""
        if self._delay_s:
            print("coordinator: it is back", file=sys.stderr)
        self._is_known, self._delay_s = True, 0.0

    def wait(self, error: CallFailed) -> None:
        """Wait before the next try. Raises the error if that is no use."""
        if not self._is_known or error.exit_code != _EXIT_NOT_REACHED:
            raise error
        if not self._delay_s:
            print(f"coordinator: {error}; waiting for it", file=sys.stderr)
        self._delay_s = min(max(RETRY_LEAST_S, 2 * self._delay_s), RETRY_MOST_S)
        self._sleep(self._delay_s)


def follow(
    asked: Request, run: pb.Run, after: int, patience: Patience
) -> Iterator[pb.WatchEventsResponse]:
    """Yield what is decided on a run after that, each event once, until the run has ended."""
    while True:
        try:
            # Anew each time: a restarted coordinator may let this user in by another token.
            with channel_of(asked) as (channel, metadata):
                stream = Reader(channel, metadata).watch(run, after)
                stream.initial_metadata()  # returns once the coordinator has the call, or it ended
                if stream.is_active():
                    patience.reached()
                for response in stream:
                    after = response.events[-1].sequence
                    yield response
                return
        except CallFailed as error:
            patience.wait(error)
