"""Shell. Follows the events of a run through restarts of its coordinator. Blocks."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from drumbeat.coordinator.access.calls import EXIT_NOT_REACHED
from drumbeat.coordinator.command.looking.reading import Reader
from drumbeat.coordinator.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drumbeat.coordinator.access.calls import CoordinatorCalls
    from drumbeat.v1 import query_pb2 as pb

# Between two tries to reach a coordinator that was there before.
RETRY_LEAST_S, RETRY_MOST_S = 0.1, 2.0


class Patience:
    """Waits for a coordinator that was reached once, and says so once."""

    def __init__(
        self, calls: CoordinatorCalls, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._calls, self._sleep = calls, sleep
        self._is_known = self._is_away = False
        self._delay_s = 0.0

    def reached(self) -> None:
        """Take note that it answers."""
        self._calls.found()
        if self._is_away:
            back = f"{self._calls.address} leads" if self._calls.has_others else "it is back"
            print(f"coordinator: {back}", file=sys.stderr)
        self._is_known, self._is_away, self._delay_s = True, False, 0.0

    def wait(self, error: CallFailed) -> None:
        """Wait before the next try, unless another coordinator is next. Raises if it is no use."""
        if self._calls.goes_on and not self._is_known:
            return
        if not self._calls.goes_on:
            error = self._calls.failure(error)
            if not self._is_known or error.exit_code != EXIT_NOT_REACHED:
                raise error
        if not self._is_away:
            awaited = "the one that leads" if self._calls.has_others else "it"
            print(f"coordinator: {error}; waiting for {awaited}", file=sys.stderr)
        self._is_away = True
        if self._calls.goes_on:
            return
        self._delay_s = min(max(RETRY_LEAST_S, 2 * self._delay_s), RETRY_MOST_S)
        self._sleep(self._delay_s)


def follow(
    calls: CoordinatorCalls, run: pb.Run, after: int, patience: Patience
) -> Iterator[pb.WatchEventsResponse]:
    """Yield what is decided on a run after that, each event once, until the run has ended."""
    while True:
        try:
            # Anew each time: a restarted coordinator may let this user in by another token.
            with calls.channel() as (channel, metadata):
                reader = Reader(channel, metadata)
                reader.run(run.run_id)  # one that does not lead takes a stream, too, and holds it
                patience.reached()
                for response in reader.watch(run, after):
                    after = response.events[-1].sequence
                    yield response
                return
        except CallFailed as error:
            patience.wait(error)
