"""Shell. A client of etcd. It uses one member at a time, and the next one after any failure.

It never repeats a write, and does not wait for a member to come back: the caller gets the error at
once and tries again, then with another member.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from drumbeat.access.problem import AccessProblem
from drumbeat.coordinator import errors
from drumbeat.coordinator.journal.etcd import messages, model
from drumbeat.coordinator.journal.etcd.address import EtcdAddress
from drumbeat.coordinator.journal.etcd.link import GRACE_S, EtcdConnection, EtcdError
from drumbeat.coordinator.journal.etcd.messages import rpc
from drumbeat.coordinator.journal.etcd.statuses import OUTAGE_HINT, Failure, Meaning
from drumbeat.text.addresses import HostPort

# Limit of one call: well below the shortest lease, so that a dead member costs no leadership, and
# well above what a slow disk takes.
CALL_TIMEOUT_S = 1.0
# After this time without an answer the next member is asked as well.
SLOW_ANSWER_S = 0.25
# A write has more time the more it sends.
WRITE_BYTES_PER_S_MIN = 1024 * 1024
# Limit of one page: it can be large, and waiting for it does no harm.
READ_TIMEOUT_S = 5.0
# Values in one page.
PAGE_KEYS = 1_000
# Names in one page. For each page etcd counts all keys up to the end of the range, so pages of
# names are large. Pages of values end where the next one begins: nothing else is counted.
PAGE_NAMES = 50_000

Result = TypeVar("Result")


class EtcdClient:
    """An ``Etcd``. Connects with its first call.

    Besides ``JournalOutage`` methods raise ``JournalUnusable`` for what etcd will never do, and for
    a wrong password or certificate until etcd has accepted them once.
    """

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self._at = 0  # index of the endpoint that is used, or tried next
        self._link: EtcdConnection | None = None
        self._connecting = asyncio.Lock()
        self._was_let_in = False
        self._closing: set[asyncio.Task[None]] = set()

    async def commit(self, transaction: model.Transaction) -> model.TransactionOutcome:
        request = messages.txn_request(transaction)
        timeout_s = CALL_TIMEOUT_S + request.ByteSize() / WRITE_BYTES_PER_S_MIN
        return messages.outcome(
            await self._call(lambda link: link.call(link.kv.Txn, request, timeout_s))
        )

    async def read(self, key: str, end: str) -> model.RangeReading:
        """Read a range, in pages at one revision."""
        request = rpc.RangeRequest(key=key.encode(), range_end=end.encode(), limit=PAGE_KEYS)
        page = await self._read_page(request)
        pairs = list(messages.pairs(page.kvs))
        revision = page.header.revision
        if page.more:
            rest = page.kvs[-1].key + b"\0"
            bounds = await self._bounds(rest, end.encode(), revision)
            for first, last in itertools.pairwise(bounds):
                request = rpc.RangeRequest(key=first, range_end=last, revision=revision)
                pairs += messages.pairs((await self._read_page(request)).kvs)
        return model.RangeReading(revision=revision, pairs=tuple(pairs))

    async def _bounds(self, key: bytes, end: bytes, revision: int) -> list[bytes]:
        """Return where pages of values begin, and the end of the last one."""
        request = rpc.RangeRequest(
            key=key, range_end=end, revision=revision, limit=PAGE_NAMES, keys_only=True
        )
        bounds: list[bytes] = []
        while True:
            page = await self._read_page(request)
            bounds += (pair.key for pair in page.kvs[::PAGE_KEYS])
            if not page.more:
                return [*bounds, end]
            request.key = page.kvs[-1].key + b"\0"

    async def grant(self, ttl_s: float) -> model.Lease:
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        answer = await self._call(
            lambda link: link.call(link.lease.LeaseGrant, request, CALL_TIMEOUT_S)
        )
        return model.Lease(lease_id=answer.ID, ttl_s=float(answer.TTL))

    async def keep_alive(self, lease_id: int) -> float:
        request = rpc.LeaseKeepAliveRequest(ID=lease_id)
        left_s: float = await self._call(lambda link: link.keep_alive(request, CALL_TIMEOUT_S))
        return left_s

    async def revoke(self, lease_id: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        await self._call(
            lambda link: link.call(link.lease.LeaseRevoke, request, CALL_TIMEOUT_S),
            harmless=Meaning.NO_LEASE,
        )

    async def watch(self, key: str, end: str, *, after: int) -> AsyncGenerator[model.Changed, None]:
        link = await self._connected()
        try:
            async with aclosing(link.watch(key, end, after)) as stream:
                async for changed in stream:
                    yield changed
        except EtcdError as failed:
            raise self._failed(link, failed.failure) from failed

    async def compact(self, revision: int) -> None:
        request = rpc.CompactionRequest(revision=revision)
        await self._call(
            lambda link: link.call(link.kv.Compact, request, CALL_TIMEOUT_S),
            harmless=Meaning.COMPACTED,
        )

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _read_page(self, request: Any) -> Any:
        """Read a page, from any member."""
        for is_last in (*(False for _ in self.address.endpoints[1:]), True):
            try:
                return await self._call(
                    lambda link: link.call(link.kv.Range, request, READ_TIMEOUT_S)
                )
            except errors.JournalOutage:
                if is_last:
                    raise
        raise AssertionError("the last one returns or raises")

    async def _call(
        self, ask: Callable[[EtcdConnection], Awaitable[Result]], *, harmless: Meaning | None = None
    ) -> Any:
        link = await self._connected()
        try:
            answer = await ask(link)
        except EtcdError as failed:
            if failed.failure.meaning is harmless:
                return None
            raise self._failed(link, failed.failure) from failed
        except AccessProblem as problem:
            raise self._failed(link, _refusal(problem)) from problem
        self._was_let_in = True
        return answer

    async def _connected(self) -> EtcdConnection:
        """Return the link, or connect to a member that answers soon."""
        async with self._connecting:
            if self._link is None:
                self._link = await self._opened_soonest()
            return self._link

    async def _opened_soonest(self) -> EtcdConnection:
        """Connect to the members in turn, and to the next one as well while one is slow."""
        endpoints = self.address.endpoints
        untried = deque([*endpoints[self._at :], *endpoints[: self._at]])
        opening: dict[asyncio.Task[EtcdConnection], HostPort] = {}
        problems: list[tuple[object, Failure]] = []
        try:
            while untried or opening:
                if untried:
                    endpoint = untried.popleft()
                    opening[asyncio.ensure_future(self._opened(endpoint))] = endpoint
                timeout_s = SLOW_ANSWER_S if untried else None
                ended, _ = await asyncio.wait(
                    opening, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    try:
                        link = task.result()
                    except EtcdError as failed:
                        problems.append((opening.pop(task), failed.failure))
                    except AccessProblem as problem:
                        problems.append((opening.pop(task), _refusal(problem)))
                    else:
                        self._at = endpoints.index(opening.pop(task))
                        return link
            raise self._no_member(problems)
        finally:
            for task in opening:
                self._close(_abandon(task))

    async def _opened(self, endpoint: HostPort) -> EtcdConnection:
        link = EtcdConnection(self.address, endpoint)
        try:
            await link.open()
        except BaseException:
            await link.close()
            raise
        return link

    def _no_member(self, problems: list[tuple[object, Failure]]) -> errors.CommandFailed:
        """Return why no member could be used."""
        text = "; ".join(f"{endpoint}: {failure.text}" for endpoint, failure in problems)
        refusals = [failure for _, failure in problems if failure.meaning is Meaning.NOT_LET_IN]
        if not refusals:
            return errors.JournalOutage(str(self.address), text, hint=problems[0][1].hint)
        # A client that was let in before may be again, when both sides have the same new secrets.
        kind = errors.JournalOutage if self._was_let_in else errors.JournalUnusable
        return kind(str(self.address), text, hint=refusals[0].hint)

    def _failed(self, link: EtcdConnection, failure: Failure) -> errors.CommandFailed:
        """Return the error of a failure, and leave a member that may be its reason."""
        where, text = str(self.address), f"{link.endpoint}: {failure.text}"
        if failure.meaning is Meaning.FULL:
            return errors.JournalFull(where, text, hint=failure.hint)
        if failure.meaning in (Meaning.IMPOSSIBLE, Meaning.NO_LEASE):
            return errors.JournalUnusable(where, text, hint=failure.hint)
        if link is self._link:
            self._leave(link)
        if failure.meaning is Meaning.NOT_LET_IN and not self._was_let_in:
            return errors.JournalUnusable(where, text, hint=failure.hint)
        return errors.JournalOutage(where, text, hint=failure.hint or OUTAGE_HINT)

    def _leave(self, link: EtcdConnection) -> None:
        """Go on to the next member; calls that are under way at this one have some time."""
        self._link = None
        self._at = (self._at + 1) % len(self.address.endpoints)
        link.break_off()
        self._close(link.close(GRACE_S))

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _abandon(opening: asyncio.Task[EtcdConnection]) -> None:
    """Close a link that is not needed any more, even if it is not open yet."""
    opening.cancel()
    with suppress(EtcdError, AccessProblem, asyncio.CancelledError):
        await (await opening).close()


def _refusal(problem: AccessProblem) -> Failure:
    return Failure(Meaning.NOT_LET_IN, problem.text, problem.hint)
