"""A cluster of etcd in memory, behind the interface that coordinators know; with faults."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from drumbeat.coordinator.errors import JournalOutage
from drumbeat.coordinator.journal.etcd.model import (
    Changed,
    Lease,
    RangeReading,
    Transaction,
    TransactionOutcome,
)
from tests.support.etcd_state import TTL_MIN_S, Compacted, EtcdState, Refused

T = TypeVar("T")


class Fault(Enum):
    """What may happen to one request."""

    REQUEST_LOST = "it never arrives; the client hears nothing"
    ANSWER_LOST = "it is done; the client hears nothing"
    LATE = "the client hears nothing; it arrives with ``deliver_late``"
    TWICE = "it is done and answered; it arrives once more with ``deliver_late``"
    HELD = "it arrives with ``release``"
    ANSWER_HELD = "it is done; its answer arrives with ``release``"


class EtcdModel:
    """What the members agree on, and the time. Clients of it are made with ``client``.

    With ``now`` the test moves the time (``advance``); without, leases end in real time.
    """

    def __init__(self, *, now: float | None = None, ttl_min_s: int = TTL_MIN_S) -> None:
        self.state = EtcdState(ttl_min_s=ttl_min_s)
        self.has_majority = True
        self._now = now
        self._late: list[Callable[[], object]] = []
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def now(self) -> float:
        """The time by which leases end."""
        return time.monotonic() if self._now is None else self._now

    def client(self) -> EtcdClientModel:
        """Return a client, with faults of its own."""
        return EtcdClientModel(self)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert self._now is not None, "the time of this model is the real one"
        self._now += seconds
        self.settle()

    def lose_majority(self) -> None:
        """Do and answer nothing any more; no lease ends either."""
        self.has_majority = False

    def regain_majority(self) -> None:
        """Answer again; all leases begin anew."""
        self.has_majority = True
        self.state.elect(now=self.now)
        self.settle()

    def expire(self, lease_id: int) -> None:
        """End a lease now, as if its time were over."""
        self.state.revoke(lease_id)
        self.settle()

    def deliver_late(self) -> None:
        """Let what is under way arrive now; who sent it hears nothing of it."""
        late, self._late = self._late, []
        for action in late:
            with suppress(Refused):
                action()
        self.settle()

    def keep(self, action: Callable[[], object]) -> None:
        """Let a request arrive later."""
        self._late.append(action)

    def settle(self) -> None:
        """Carry out what follows from a change or from the time: ends of leases, and watches."""
        if self.has_majority:
            self.state.expire(now=self.now)
        self._changed.set()
        self._changed = asyncio.Event()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends_at = self.state.next_expiry()
        if self._now is None and self.has_majority and ends_at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, ends_at - self.now), self.settle)

    async def wait(self) -> None:
        """Wait for whatever happens next."""
        await self._changed.wait()


class EtcdClientModel:
    """One client: an ``Etcd``, of which each request may meet a fault."""

    def __init__(self, model: EtcdModel) -> None:
        self.model = model
        self.requests: list[str] = []  # names of methods, as they were called
        self.delay_s = 0.0  # of each request, in real time
        self._is_cut_off = False
        self._faults: dict[str, deque[Fault]] = {}
        self._watches = 0  # watches of an older number are broken
        self._released = asyncio.Event()

    # Faults.

    def fail(self, fault: Fault, method: str = "commit", *, times: int = 1) -> None:
        """Let the next calls of a method meet a fault."""
        self._faults.setdefault(method, deque()).extend([fault] * times)

    def recover(self) -> None:
        """Let all calls that follow meet no fault."""
        self._faults.clear()

    def release(self) -> None:
        """Let go what is held."""
        self._released.set()
        self._released = asyncio.Event()

    def cut_off(self) -> None:
        """Let nothing arrive any more, and break watches."""
        self._is_cut_off = True
        self.break_watches()

    def reconnect(self) -> None:
        """Let requests arrive again."""
        self._is_cut_off = False

    def break_watches(self) -> None:
        """Break all watches; new ones can be had at once, unless the client is cut off."""
        self._watches += 1
        self.model.settle()

    # Of ``Etcd``.

    async def commit(self, transaction: Transaction) -> TransactionOutcome:
        """Do a transaction."""
        return await self._ask("commit", lambda: self.model.state.commit(transaction))

    async def read(self, key: str, end: str) -> RangeReading:
        """Read a range."""
        return await self._ask("read", lambda: self.model.state.read(key, end))

    async def grant(self, ttl_s: float) -> Lease:
        """Begin a lease."""
        state = self.model.state
        return await self._ask("grant", lambda: state.grant(ttl_s, now=self.model.now))

    async def keep_alive(self, lease_id: int) -> float:
        """Keep a lease."""
        state = self.model.state
        return await self._ask("keep_alive", lambda: state.keep_alive(lease_id, now=self.model.now))

    async def revoke(self, lease_id: int) -> None:
        """End a lease."""
        await self._ask("revoke", lambda: self.model.state.revoke(lease_id))

    async def compact(self, revision: int) -> None:
        """Forget history."""
        await self._ask("compact", lambda: self.model.state.compact(revision))

    async def watch(self, key: str, end: str, *, after: int) -> AsyncGenerator[Changed, None]:
        """Yield changes of a range."""
        watch = self._watches
        self.requests.append("watch")
        if self._is_cut_off:
            raise _outage("cut off")
        while True:
            try:
                changed = self.model.state.changes(key, end, after=after)
            except Compacted:
                raise _outage("compacted") from None
            if changed is None:
                await self.model.wait()
            else:
                after = changed.revision
                yield changed
            if watch != self._watches:
                raise _outage("the watch is broken")

    async def close(self) -> None:
        """End watches and let no request through any more."""
        self.cut_off()

    async def _ask(self, method: str, action: Callable[[], T]) -> T:
        self.requests.append(method)
        faults = self._faults.get(method)
        fault = faults.popleft() if faults else None
        await asyncio.sleep(self.delay_s)
        if fault is Fault.HELD:
            await self._released.wait()
        if fault is Fault.REQUEST_LOST or self._is_cut_off or not self.model.has_majority:
            raise _outage("no answer")
        if fault in (Fault.LATE, Fault.TWICE):
            self.model.keep(action)
        if fault is Fault.LATE:
            raise _outage("no answer")
        try:
            answer = action()
        finally:
            self.model.settle()
        if fault is Fault.ANSWER_HELD:
            await self._released.wait()
        if fault is Fault.ANSWER_LOST or self._is_cut_off:
            raise _outage("no answer")
        return answer


def _outage(reason: str) -> JournalOutage:
    return JournalOutage("etcd", reason)
