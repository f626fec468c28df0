"""Shell. The timers of ``torch.distributed.elastic.timer``, watched by the agent.

The only module that needs torch::

    import torch.distributed.elastic.timer as timer
    import worker_sdk.torch

    timer.configure(worker_sdk.torch.TimerClient())
    with timer.expires(after=60):
        step()
"""

from __future__ import annotations

import math
import time

from torch.distributed.elastic import timer

from worker_sdk.timers import acquire, release


class TimerClient(timer.TimerClient):  # type: ignore[misc] # torch is not there for mypy
    """Gives torch's timers to the agent. Setting the wall clock changes nothing afterwards."""

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer, or start it again. See ``worker_sdk.acquire``.

        A negative time releases it, as everywhere in torch; an endless one needs no watching.
        """
        if expiration_time < 0 or math.isinf(expiration_time):
            release(scope_id)
        else:  # what has expired already does so at once
            acquire(scope_id, max(expiration_time - time.time(), 1e-6))

    def release(self, scope_id: str) -> None:
        """End the timer; harmless if there is none."""
        release(scope_id)
