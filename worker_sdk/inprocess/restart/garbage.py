"""Shell. Frees what an interrupted iteration left: communicators end when they are freed.

A collection looks at every object: with torch some 170,000, 0.1 s each time, on every worker;
most of them are modules, and are there to stay.
"""

import contextlib
import gc
import sys
import traceback
from collections.abc import Iterator

from worker_sdk.inprocess.process_groups import replaced

COLLECTIONS_MAX = 3
"""A collection may make more garbage; a program that always does must not hold us up."""

CHAIN_MAX = 64
"""Exceptions whose frames are emptied: one, what it came from, and so on."""

LOADER_JOIN_S = 0.005
"""How long a worker process of a loader that is freed may take to end by itself."""


def free(remains: list[BaseException]) -> None:
    """Free what these exceptions left behind, and forget them; then all other garbage.

    Their frames first: the collector takes the queues of a loader in a cycle apart before it is
    freed, which then can't tell its worker processes, and waits 5 s for each of them.
    """
    # `_MultiProcessingDataLoaderIter._shutdown_workers` of torch 2.13 looks it up when it waits:
    # worker processes that are busy are ended, their batch is not waited for.
    with replaced("torch.utils.data._utils", "MP_STATUS_CHECK_INTERVAL", lambda _: LOADER_JOIN_S):
        while remains:
            error: BaseException | None = remains.pop()
            for _ in range(CHAIN_MAX):
                if error is not None:
                    traceback.clear_frames(error.__traceback__)
                    error = error.__cause__ or error.__context__
        error = None
        collect()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.active_children()  # takes note of those that have ended


def collect() -> None:
    """Free what is in cycles that nothing refers to."""
    for _ in range(COLLECTIONS_MAX):
        if not gc.collect():
            return


@contextlib.contextmanager
def older_objects_left_out() -> Iterator[None]:
    """Have collections pass over what is there now, so that they take next to no time.

    Cycles of it that become garbage are freed afterwards. Not if the program does so itself.
    """
    is_ours = not gc.get_freeze_count()
    if is_ours:
        collect()  # of what is garbage already nothing is kept
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()
