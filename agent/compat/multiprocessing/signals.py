"""Shell. Turns a signal to end into an exception of the main thread."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from worker_sdk.context import SIGNALS_TO_HANDLE

_LOGGER = logging.getLogger(__name__)

SIGNALS_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class SignalException(Exception):
    """This process was told to end, by the signal ``sigval``: close the context and end."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval


class _Handlers:
    """The handlers of this process, which only its main thread can install and remove."""

    def __init__(self) -> None:
        self._users: set[int] = set()
        self._previous: dict[int, object] = {}
        self._holds = 0
        self._pending: int | None = None
        os.register_at_fork(after_in_child=self._forget_users)

    def install(self, user: object) -> None:
        """Handle the signals that ``TORCHELASTIC_SIGNALS_TO_HANDLE`` names, until `uninstall`."""
        if not _is_main_thread():
            _LOGGER.warning("workers are not started by the main thread: signals are left alone")
            return
        self._users.add(id(user))
        for name in os.environ.get(SIGNALS_TO_HANDLE, SIGNALS_DEFAULT).split(","):
            number = getattr(signal, name.strip(), None)
            if not isinstance(number, signal.Signals):
                _LOGGER.warning("%s: there is no signal %r", SIGNALS_TO_HANDLE, name)
            elif not self.is_ours(signal.getsignal(number)):  # left by another thread's `uninstall`
                try:
                    self._previous[number] = signal.signal(number, self._on_signal)
                except (OSError, ValueError) as error:
                    _LOGGER.warning("%s: %s cannot be handled: %s", SIGNALS_TO_HANDLE, name, error)

    def uninstall(self, user: object) -> None:
        """Undo an `install`; after the last one `restore_unused` puts the former handlers back."""
        self._users.discard(id(user))

    def restore_unused(self) -> None:
        """Put the former handlers back if no user is left and this is the main thread."""
        if self._users or not _is_main_thread():
            return
        for number, handler in self._previous.items():
            if handler is not None and self.is_ours(signal.getsignal(number)):
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned
        self._previous.clear()

    def is_ours(self, handler: object) -> bool:
        """Return whether ``handler`` is the one that raises `SignalException`."""
        return handler == self._on_signal

    @contextmanager
    def held(self) -> Iterator[None]:
        """In the main thread, raise at the end what comes meanwhile: no step is torn apart."""
        if not _is_main_thread():
            yield
            return
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds and self._pending is not None:
                number, self._pending = self._pending, None
                _raise(number)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._users:
            # The last user was another thread, which could not put the handlers back.
            self.restore_unused()
            os.kill(os.getpid(), number)
        elif self._holds:
            self._pending = number
        else:
            _raise(number)

    def _forget_users(self) -> None:
        """A forked child has contexts of its own only; it may be forked within `held`."""
        self._users.clear()
        self._holds = 0
        self._pending = None


HANDLERS = _Handlers()


def _raise(number: int) -> None:
    sigval = signal.Signals(number)
    raise SignalException(f"process {os.getpid()} got {sigval.name}", sigval)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
