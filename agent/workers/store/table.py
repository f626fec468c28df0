"""Pure. The keys of a store, and who waits for which of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import ClassVar

from drumbeat.agent.workers.store import commands
from drumbeat.agent.workers.store.budget import Budget
from drumbeat.agent.workers.store.commands import Command, CommandError, Op

# What it takes to remember a value, and that a client waits for a key, beside their bytes.
VALUE_BYTES = 256
WAITING_KEY_BYTES = 512
_INTEGER_LIMIT = 2**63

Answers = list[tuple[int, bytes]]
"""What to send to which clients, in this order."""


def _waiting_cost(key: bytes) -> int:
    return len(key) + WAITING_KEY_BYTES


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + VALUE_BYTES


class StoreTable:
    """Has the meaning of each command for torch's own server. Clients are numbers of the caller.

    Not thread-safe; one owner calls it. Each command costs what it touches.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._values: dict[bytes, bytes] = {}
        self._owners: dict[bytes, int] = {}  # the clients that set them
        self._queues: dict[bytes, deque[tuple[int, bytes]]] = {}  # each with who pushed it
        self._waiting: dict[bytes, dict[int, None]] = {}  # who waits for a key, first come first
        self._awaited: dict[int, set[bytes]] = {}  # what a client waits for
        self._answers: Answers = []

    def handle(self, client: int, command: Command) -> Answers:
        """Return what follows from a command; ``CommandError`` if it can't be done."""
        self._answers = []
        answer = self._HANDLERS[command.op](self, client, *command.arguments)
        if answer is not None:
            self._answers.append((client, answer))
        return self._answers

    def leave(self, client: int) -> None:
        """Forget what a client waits for."""
        for key in self._awaited.pop(client, ()):
            self._budget.release(client, _waiting_cost(key))
            waiting = self._waiting[key]
            del waiting[client]
            if not waiting:
                del self._waiting[key]

    def holders(self) -> set[int]:
        """Return the clients that make the store hold something. Linear in keys."""
        of_queues = (owner for queue in self._queues.values() for owner, _ in queue)
        return {*self._owners.values(), *of_queues, *self._awaited}

    def drop(self, client: int) -> None:
        """Forget all that a client made the store hold. Linear in keys."""
        self.leave(client)
        for key in [key for key, owner in self._owners.items() if owner == client]:
            self._remove(key)
        for key, queue in [*self._queues.items()]:
            kept = deque(waiting for waiting in queue if waiting[0] != client)
            for _, value in (waiting for waiting in queue if waiting[0] == client):
                self._budget.release(client, _cost(key, value))
            self._queues[key] = kept
            if not kept:
                del self._queues[key]

    def _validate(self, _client: int, _magic: int) -> None:
        """Send no error: the client is only disconnected."""

    def _ping(self, _client: int, nonce: int) -> bytes:
        return commands.word(nonce)

    def _set(self, client: int, key: bytes, value: bytes) -> None:
        self._put(client, key, value)
        self._wake(key)

    def _set_many(self, client: int, pairs: list[bytes]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self._set(client, key, value)

    def _append(self, client: int, key: bytes, value: bytes) -> None:
        self._set(client, key, self._values.get(key, b"") + value)

    def _compare_set(self, client: int, key: bytes, expected: bytes, value: bytes) -> bytes:
        """Answer what the key has now; of a key that is not there, what was expected."""
        if self._values.get(key, b"") == expected:
            self._set(client, key, value)
        return commands.text(self._values.get(key, expected))

    def _add(self, client: int, key: bytes, change: int) -> bytes:
        total = self._number_at(key) + change
        if not -_INTEGER_LIMIT <= total < _INTEGER_LIMIT:
            raise CommandError("the sum exceeds 64 bits")
        self._set(client, key, str(total).encode())
        return commands.integer(total)

    def _get(self, _client: int, key: bytes) -> bytes:
        return commands.text(self._values.get(key, b""))

    def _get_many(self, client: int, keys: list[bytes]) -> bytes:
        # A key may be named again and again.
        return self._joined(client, [self._values.get(key, b"") for key in keys])

    def _delete(self, _client: int, key: bytes) -> bytes:
        if key not in self._values:
            return commands.integer(0)
        self._remove(key)
        return commands.integer(1)

    def _count(self, _client: int) -> bytes:
        return commands.integer(len(self._values))

    def _list(self, client: int) -> bytes:
        return self._count(client) + self._joined(client, self._values)

    def _check(self, _client: int, keys: list[bytes]) -> bytes:
        return commands.READY if all(map(self._is_there, keys)) else commands.NOT_READY

    def _wait(self, client: int, keys: list[bytes]) -> bytes | None:
        missing = {key for key in keys if not self._is_there(key)}
        if not missing:
            return commands.AWAITED
        self._await(client, missing)
        return None

    def _cancel_wait(self, client: int) -> bytes:
        self.leave(client)
        return commands.CANCELED

    def _arrive(self, client: int, key: bytes, size: int) -> bytes | None:
        """Count one more at a barrier: its key has their number, and all wait for the last."""
        total = self._number_at(key) + 1
        self._put(client, key, str(total).encode())
        if total < size:
            self._await(client, {key})
            return None
        self._wake(key)
        return commands.AWAITED

    def _push(self, client: int, key: bytes, value: bytes) -> None:
        self._budget.hold(client, _cost(key, value))
        self._queues.setdefault(key, deque()).append((client, value))
        self._wake_one(key)

    def _pop(self, _client: int, key: bytes) -> bytes:
        """Answer how many there were in a queue, and the first of them."""
        queue = self._queues.get(key)
        if not queue:
            return commands.integer(0)
        length, (owner, value) = len(queue), queue.popleft()
        self._budget.release(owner, _cost(key, value))
        if not queue:
            del self._queues[key]
        return commands.integer(length) + commands.text(value)

    def _length(self, _client: int, key: bytes) -> bytes:
        return commands.integer(len(self._queues.get(key, ())))

    def _is_there(self, key: bytes) -> bool:
        return key in self._values or key in self._queues

    def _number_at(self, key: bytes) -> int:
        try:
            number = int(self._values.get(key, b"0"))
        except ValueError:
            raise CommandError("add: the value is not a number") from None
        if not -_INTEGER_LIMIT <= number < _INTEGER_LIMIT:
            raise CommandError("add: the value exceeds 64 bits")
        return number

    def _put(self, client: int, key: bytes, value: bytes) -> None:
        self._budget.hold(client, _cost(key, value))
        self._remove(key)
        self._values[key], self._owners[key] = value, client

    def _remove(self, key: bytes) -> None:
        if (value := self._values.pop(key, None)) is not None:
            self._budget.release(self._owners.pop(key), _cost(key, value))

    def _joined(self, client: int, texts: Collection[bytes]) -> bytes:
        """Return texts as one answer, if there is room for it and its copy in the connection."""
        size = 2 * sum(map(len, texts))
        self._budget.hold(client, size)
        self._budget.release(client, size)
        return commands.texts(texts)

    def _await(self, client: int, keys: set[bytes]) -> None:
        self.leave(client)
        self._budget.hold(client, sum(map(_waiting_cost, keys)))
        self._awaited[client] = keys
        for key in keys:
            self._waiting.setdefault(key, {})[client] = None

    def _wake(self, key: bytes) -> None:
        for client in self._waiting.pop(key, ()):
            self._budget.release(client, _waiting_cost(key))
            awaited = self._awaited[client]
            awaited.discard(key)
            if not awaited:
                del self._awaited[client]
                self._answers.append((client, commands.AWAITED))

    def _wake_one(self, key: bytes) -> None:
        """Answer the first for whom this is the last key: one value is for one of them."""
        for client in self._waiting.get(key, ()):
            if self._awaited[client] == {key}:
                self.leave(client)
                self._answers.append((client, commands.AWAITED))
                return

    _HANDLERS: ClassVar[dict[Op, Callable[..., bytes | None]]] = {
        Op.VALIDATE: _validate,
        Op.SET: _set,
        Op.COMPARE_SET: _compare_set,
        Op.GET: _get,
        Op.ADD: _add,
        Op.CHECK: _check,
        Op.WAIT: _wait,
        Op.COUNT_KEYS: _count,
        Op.DELETE: _delete,
        Op.APPEND: _append,
        Op.MULTI_GET: _get_many,
        Op.MULTI_SET: _set_many,
        Op.CANCEL_WAIT: _cancel_wait,
        Op.PING: _ping,
        Op.QUEUE_PUSH: _push,
        Op.QUEUE_POP: _pop,
        Op.QUEUE_LENGTH: _length,
        Op.LIST_KEYS: _list,
        Op.BARRIER: _arrive,
    }
