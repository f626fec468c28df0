"""Shell. Raises ``RankShouldRestart`` in the main thread, and nowhere it must not.

The handler of a signal raises it, between two instructions of Python or within a system call that
the signal broke. So the main thread decides itself, at that moment, whether it may: no exception is
under way that could land later, somewhere else.
"""

import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from worker_sdk.inprocess.errors import RankShouldRestart
from worker_sdk.interpreter.signal_numbers import INTERRUPTING

IMPORT_S = 10.0
"""For how long an import is let through; one that takes longer is left amid it."""


class Interrupter:
    """Lets the main thread be interrupted while it runs the user's code, and a reason is set.

    One per process at a time; made and closed by the main thread. ``on_raised`` is called there
    when the exception is raised, ``on_dropped`` by any thread when it is gone: unless ``run`` was
    left by then, the user's code stopped it. Both may interrupt anything, so they are reentrant.
    Raises ``RuntimeError`` if no signal is left for the handler.
    """

    def __init__(self, on_raised: Callable[[], None], on_dropped: Callable[[], None]) -> None:
        self.reason: str | None = None
        """Why the main thread shall leave; ``None``: it need not. Written by the monitor."""
        self._is_open = False
        self._import_until: float | None = None
        self._on_raised, self._on_dropped = on_raised, on_dropped
        self._raised: weakref.ref[RankShouldRestart] | None = None
        self._is_swallowed = False
        self._main, self._main_tid = threading.get_ident(), threading.get_native_id()
        self._signal = _free_signal()
        self._previous = signal.signal(self._signal, lambda _, frame: self.interrupt(frame))
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {self._signal})
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._note_unraisable

    def run(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Return what ``function`` returned, and what it raised; for the main thread."""
        # Nothing is raised between these lines: the handler knows this frame. No outcome is lost.
        try:
            self._import_until = None
            self._is_open = True
            value = _call(function)
            self._is_open = False
        except BaseException as error:  # noqa: BLE001 - the caller decides what each means
            self._is_open = False
            return None, error
        return value, None

    def send(self) -> None:
        """Have the main thread look whether it shall leave; ends a system call it waits in."""
        signal.pthread_kill(self._main, self._signal)

    def obstacle(self) -> str:
        """Say why the main thread does not leave although it was sent for; empty if not known."""
        if self._is_swallowed:
            where = "in __del__ or in a weak reference's callback"
            return f"it is {where}, where Python drops exceptions"
        if _is_blocked(self._signal, Path(f"/proc/self/task/{self._main_tid}/status").read_text()):
            return f"it blocks signal {int(self._signal)}, by which it is interrupted"
        return ""

    def interrupt(self, frame: FrameType | None) -> None:
        """Raise if it is wanted, and if ``frame`` may be left."""
        reason, is_kept_out = self.reason, frame is not None and frame.f_code in UNINTERRUPTIBLE
        if reason is None or not self._is_open or is_kept_out or self._awaits_import(frame):
            return
        self._import_until = None
        self._is_swallowed = False
        error = RankShouldRestart(reason)
        self._raised = weakref.ref(error, lambda _: self._on_dropped())
        self._on_raised()
        try:
            raise error
        finally:
            # Its traceback has this frame: as long as that had it, it would never be gone.
            del error

    def _awaits_import(self, frame: FrameType | None) -> bool:
        """Return whether ``frame`` is in an import, which is to end first; this is sent again.

        A package that is left amid its import is made anew at the next one, without those of its
        modules that were complete: ``torch._dynamo``, which DistributedDataParallel imports when it
        is first made, can't be imported any more then.
        """
        while frame is not None and frame.f_code is not Interrupter.run.__code__:
            if frame.f_code.co_filename == _IMPORTING:
                now = time.monotonic()
                self._import_until = self._import_until or now + IMPORT_S
                return now < self._import_until
            frame = frame.f_back
        return False

    def close(self) -> None:
        """Restore what was before; nothing may be sent any more."""
        if sys.unraisablehook == self._note_unraisable:
            sys.unraisablehook = self._hook
        # Ignored in between: this forgets one that may be pending still.
        signal.signal(self._signal, signal.SIG_IGN)
        signal.signal(self._signal, self._previous)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _note_unraisable(self, unraisable: Any) -> None:
        """Keep quiet of ours: it was raised where none can be, and comes again."""
        if issubclass(unraisable.exc_type, RankShouldRestart):
            self._is_swallowed = True
        else:
            self._hook(unraisable)


def _import_locking() -> set[CodeType]:
    """Code of the interpreter that takes the import lock and gives it back.

    Left amid it, the main thread would keep that lock: no other could import or fork any more.
    """
    importing = vars(sys.modules["_frozen_importlib"])
    context = vars(importing.get("_ImportLockContext", object)).values()
    functions = [importing.get("_get_module_lock"), *context]
    codes = {function.__code__ for function in functions if isinstance(function, FunctionType)}
    inner = {const for code in codes for const in code.co_consts if isinstance(const, CodeType)}
    return codes | inner


_IMPORTING = sys.modules["_frozen_importlib"]._find_and_load.__code__.co_filename  # noqa: SLF001
UNINTERRUPTIBLE: set[CodeType] = {Interrupter.run.__code__, *_import_locking()}
"""Code in whose own frames nothing is raised."""


class Atomic:
    """A lock that the main thread and the termination procedure hold in turn; reentrant."""

    def __init__(self, interrupt: Callable[[None], None]) -> None:
        self._interrupt = interrupt
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            # The exception may have been raised already, and this be code that cleans up.
            if threading.current_thread() is threading.main_thread():
                self._interrupt(None)
            self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _call(function: Callable[[], Any]) -> Any:
    """Be a frame between ``Interrupter.run`` and code that may have none of its own."""
    return function()


def _is_blocked(number: int, status: str) -> bool:
    blocked = re.search(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)
    return blocked is not None and bool(int(blocked[1], 16) >> (number - 1) & 1)


def _free_signal() -> signal.Signals | int:
    """Return a signal that this process does not handle, ignore or wait for."""
    taken = 0
    status = Path("/proc/self/status").read_text()
    for mask in re.findall(r"^Sig(?:Blk|Ign|Cgt):\s*(\w+)", status, re.MULTILINE):
        taken |= int(mask, 16)
    for number in INTERRUPTING:
        if not taken & (1 << (number - 1)) and signal.getsignal(number) is signal.SIG_DFL:
            return number
    first, last = INTERRUPTING[0], INTERRUPTING[-1]
    raise RuntimeError(f"the signals {first} to {last} are all in use: none is left for restarts")
