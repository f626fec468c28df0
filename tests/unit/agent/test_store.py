"""The store of torch's clients: what they say, and what it means."""

import struct
from typing import Any

import pytest

from drumbeat.agent.workers.store import budget, commands, table
from drumbeat.agent.workers.store.budget import Budget
from drumbeat.agent.workers.store.commands import MAGIC, Command, CommandError, CommandReader, Op
from drumbeat.agent.workers.store.table import StoreTable

HELLO = struct.pack("<BI", Op.VALIDATE, MAGIC)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def texts(*values: bytes) -> bytes:
    return struct.pack("<Q", len(values)) + b"".join(map(text, values))


SAID = {
    Op.PING: (struct.pack("<I", 7), (7,)),
    Op.SET: (text(b"k") + text(b"v"), (b"k", b"v")),
    Op.COMPARE_SET: (text(b"k") + text(b"") + text(b"v"), (b"k", b"", b"v")),
    Op.GET: (text(b"k"), (b"k",)),
    Op.ADD: (text(b"k") + struct.pack("<q", -3), (b"k", -3)),
    Op.CHECK: (texts(), ([],)),
    Op.WAIT: (texts(b"a", b"b"), ([b"a", b"b"],)),
    Op.COUNT_KEYS: (b"", ()),
    Op.MULTI_SET: (struct.pack("<Q", 1) + text(b"a") + text(b"1"), ([b"a", b"1"],)),
    Op.BARRIER: (text(b"b") + struct.pack("<q", 2), (b"b", 2)),
}


@pytest.mark.parametrize("piece", [1, 3, 1_000])
def test_commands_are_found_in_pieces_of_any_size(piece: int) -> None:
    said = HELLO + b"".join(bytes([op]) + data for op, (data, _) in SAID.items())
    reader, found = CommandReader(), []
    for at in range(0, len(said), piece):
        found += reader.feed(said[at : at + piece])
    assert found[0] == Command(Op.VALIDATE, (MAGIC,))
    assert found[1:] == [Command(op, arguments) for op, (_, arguments) in SAID.items()]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<BI", Op.VALIDATE, MAGIC + 1),
        bytes([Op.COUNT_KEYS]),
        HELLO + HELLO,
        HELLO + b"\x13",
        HELLO + bytes([Op.GET]) + struct.pack("<Q", commands.TEXT_BYTES_MAX + 1),
        HELLO + bytes([Op.WAIT]) + struct.pack("<Q", commands.LIST_MAX + 1),
    ],
)
def test_what_is_no_command_is_refused(said: bytes) -> None:
    with pytest.raises(CommandError):
        CommandReader().feed(said)


def test_a_command_has_a_bound_with_all_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "COMMAND_BYTES_MAX", 100)
    reader, one = CommandReader(), bytes([Op.SET]) + text(b"k") + text(b"v" * 60)
    assert len(reader.feed(HELLO + one * 3)) == 4
    with pytest.raises(CommandError, match="100 bytes"):
        reader.feed(bytes([Op.WAIT]) + texts(b"k" * 40, b"k" * 40)[:-40])


class Store:
    """A table, and what its clients were answered."""

    def __init__(self) -> None:
        self.budget = Budget()
        self.table = StoreTable(self.budget)

    def __call__(self, client: int, op: Op, *arguments: Any) -> list[tuple[int, bytes]]:
        return list(self.table.handle(client, Command(op, arguments)))


@pytest.fixture
def store() -> Store:
    return Store()


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def test_a_client_waits_for_all_its_keys(store: Store) -> None:
    assert store(1, Op.WAIT, [b"a", b"b"]) == []
    assert store(2, Op.WAIT, [b"b"]) == []
    assert store(3, Op.SET, b"b", b"1") == [(2, commands.AWAITED)]
    assert store(3, Op.MULTI_SET, [b"b", b"2", b"a", b"1"]) == [(1, commands.AWAITED)]
    assert store(1, Op.WAIT, [b"a", b"b"]) == [(1, commands.AWAITED)]
    assert store(1, Op.MULTI_GET, [b"b", b"c"]) == [(1, text(b"2") + text(b""))]


def test_who_has_left_or_waits_no_more_is_answered_nothing(store: Store) -> None:
    store(1, Op.WAIT, [b"a", b"b"])
    store(2, Op.WAIT, [b"a"])
    assert store(1, Op.CANCEL_WAIT) == [(1, commands.CANCELED)]
    store.table.leave(2)
    store.table.leave(3)
    assert store(3, Op.MULTI_SET, [b"a", b"", b"b", b""]) == []


def test_sums_and_lists(store: Store) -> None:
    assert store(1, Op.ADD, b"n", 3) == [(1, number(3))]
    assert store(1, Op.ADD, b"n", -5) == [(1, number(-2))]
    assert store(1, Op.GET, b"n") == [(1, text(b"-2"))]
    store(1, Op.APPEND, b"a", b"x")
    store(1, Op.APPEND, b"a", b"y")
    assert store(1, Op.LIST_KEYS) == [(1, texts(b"n", b"a"))]
    assert store(1, Op.DELETE, b"a") == [(1, number(1))]
    assert store(1, Op.DELETE, b"a") == [(1, number(0))]
    assert store(1, Op.COUNT_KEYS) == [(1, number(1))]
    assert store(1, Op.CHECK, [b"n"]) == [(1, commands.READY)]
    assert store(1, Op.CHECK, [b"n", b"a"]) == [(1, commands.NOT_READY)]


@pytest.mark.parametrize(
    ("before", "expected", "answer", "after"),
    [
        (None, b"", b"new", b"new"),
        (None, b"x", b"x", b""),
        (b"x", b"x", b"new", b"new"),
        (b"y", b"x", b"y", b"y"),
    ],
)
def test_a_value_is_compared_before_it_is_set(
    store: Store, before: bytes | None, expected: bytes, answer: bytes, after: bytes
) -> None:
    if before is not None:
        store(1, Op.SET, b"k", before)
    assert store(1, Op.COMPARE_SET, b"k", expected, b"new") == [(1, text(answer))]
    assert store(1, Op.GET, b"k") == [(1, text(after))]


def test_a_value_of_a_queue_is_for_one(store: Store) -> None:
    for client in (1, 2):
        assert store(client, Op.WAIT, [b"q"]) == []
    assert store(3, Op.QUEUE_PUSH, b"q", b"v") == [(1, commands.AWAITED)]
    assert store(1, Op.QUEUE_LENGTH, b"q") == [(1, number(1))]
    assert store(1, Op.QUEUE_POP, b"q") == [(1, number(1) + text(b"v"))]
    assert store(1, Op.QUEUE_POP, b"q") == [(1, number(0))]
    assert store(3, Op.QUEUE_PUSH, b"q", b"w") == [(2, commands.AWAITED)]


def test_a_barrier_opens_for_all_with_the_last(store: Store) -> None:
    assert store(1, Op.BARRIER, b"b", 3) == []
    assert store(2, Op.BARRIER, b"b", 3) == []
    assert sorted(store(3, Op.BARRIER, b"b", 3)) == [(n, commands.AWAITED) for n in (1, 2, 3)]
    assert store(1, Op.BARRIER, b"b", 3) == [(1, commands.AWAITED)]


@pytest.mark.parametrize("op", [Op.ADD, Op.BARRIER])
def test_a_number_is_added_to_a_number(store: Store, op: Op) -> None:
    store(1, Op.SET, b"k", b"x")
    with pytest.raises(CommandError):
        store(1, op, b"k", 1)
    store(1, Op.ADD, b"n", 2**63 - 1)
    with pytest.raises(CommandError):
        store(1, Op.ADD, b"n", 1)


def test_beyond_the_budget_the_client_that_holds_most_goes_with_its_values(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "LEAST_BYTES", 4 * table.VALUE_BYTES)
    monkeypatch.setattr(budget, "CLIENT_BYTES", 0)
    store.budget.let_go = store.table.drop
    store(1, Op.SET, b"a", b"x")
    store(2, Op.SET, b"b", b"x" * table.VALUE_BYTES)
    store(3, Op.SET, b"c", b"x" * 200)
    assert store(1, Op.GET, b"b") == [(1, text(b""))]
    assert store(1, Op.GET, b"a") == [(1, text(b"x"))]
    for op, value in ((Op.SET, b"1"), (Op.APPEND, b"1"), (Op.QUEUE_PUSH, b"1")):
        with pytest.raises(CommandError, match="most of them"):
            store(1, op, b"l", value * 2 * table.VALUE_BYTES)
    with pytest.raises(CommandError, match="most of them"):
        store(1, Op.MULTI_GET, [b"c"] * 5)
    store(1, Op.DELETE, b"c")
    store(1, Op.QUEUE_PUSH, b"l", b"x" * 200)
    store(1, Op.QUEUE_POP, b"l")
    store(1, Op.SET, b"c", b"x" * 200)


def test_what_is_gone_costs_nothing(store: Store) -> None:
    for _ in range(3):
        store(1, Op.WAIT, [b"a"])
        store(2, Op.WAIT, [b"b"])
        store.table.leave(2)
        store(4, Op.SET, b"a", b"")
        store(4, Op.DELETE, b"a")
        store(4, Op.QUEUE_PUSH, b"q", b"v")
        store(4, Op.QUEUE_PUSH, b"q", b"v")
        store(3, Op.QUEUE_POP, b"q")
        store.table.drop(4)
    assert store.budget._total == 0
    assert store.table.holders() == set()


def test_a_number_of_thousands_of_digits_ends_the_client_alone() -> None:
    made = StoreTable(Budget())
    made.handle(1, Command(Op.SET, (b"k", b"9" * 4_300)))
    for command in (Command(Op.BARRIER, (b"k", 2)), Command(Op.ADD, (b"k", 1))):
        with pytest.raises(CommandError, match="64 bits"):
            made.handle(1, command)
