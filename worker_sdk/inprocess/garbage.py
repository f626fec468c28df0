"""Shell. Frees what an interrupted iteration left: communicators end when they are freed.

A collection looks at every object there is. With torch that is some 170,000, 0.1 s
each time, on every worker; most of them are modules, and are there to stay.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COLLECTIONS_MAX = 3
"""A collection may make more garbage; a program that always does must not hold us up."""


def collect() -> None:
    """Free what nobody can reach."""
    for _ in range(COLLECTIONS_MAX):
        if not gc.collect():
            return


@contextlib.contextmanager
def older_objects_left_out() -> Iterator[None]:
    """Have collections pass over what is there now, so that they take next to no time.

    What of it becomes garbage meanwhile, and is part of a cycle, is freed afterwards.
    Does nothing if the program has done this itself.
    """
    if gc.get_freeze_count():
        yield
        return
    collect()  # of what is garbage already nothing is kept
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
