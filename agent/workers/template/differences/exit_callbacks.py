"""Shell. Drops `atexit` callbacks of the script for preloading: no new process would run them."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ATEXIT: Any = atexit


@contextmanager
def callbacks_dropped(script_name: str) -> Iterator[None]:
    """Forget what the script whose ``__name__`` this is registers itself within the context.

    Callbacks of the modules that it imports stay: a program that imports them has them as well.
    """
    register = _ATEXIT.register

    def note(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_own = sys._getframe(1).f_globals.get("__name__") == script_name  # noqa: SLF001
        return callback if is_own else register(callback, *args, **kwargs)

    _ATEXIT.register = note
    try:
        yield
    finally:
        if _ATEXIT.register is note:  # else another module has replaced the function since
            _ATEXIT.register = register
