"""Which instant is next, and which are due."""

from hypothesis import given
from hypothesis import strategies as st

from drumbeat.deadlines import Deadlines

KEYS = st.sampled_from("abcd")
INSTANTS = st.integers(0, 20).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, INSTANTS),
        st.tuples(st.just("clear"), KEYS, st.just(0.0)),
        st.tuples(st.just("pop"), st.just(""), INSTANTS),
    ),
    max_size=60,
)


def test_nothing_is_due_of_nothing() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next() is None
    assert deadlines.pop_due(1e9) == []


def test_due_keys_come_earliest_first_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, instant in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("later", 9.0)):
        deadlines.set(key, instant)
    assert deadlines.pop_due(3.0) == ["a", "b", "c"]
    assert deadlines.pop_due(3.0) == []
    assert deadlines.next() == 9.0


def test_keys_of_one_instant_come_in_the_order_they_were_set() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in "cab":
        deadlines.set(key, 5.0)
    assert deadlines.pop_due(5.0) == ["c", "a", "b"]


def test_a_deadline_can_be_postponed_advanced_and_cleared() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 5.0)
    deadlines.set("a", 7.0)
    assert deadlines.pop_due(6.0) == []
    deadlines.set("a", 3.0)
    assert deadlines.next() == 3.0
    deadlines.clear("a")
    deadlines.clear("never there")
    assert deadlines.next() is None


@given(STEPS)
def test_it_behaves_like_a_plain_table(steps: list[tuple[str, str, float]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    table: dict[str, float] = {}
    for what, key, instant in steps:
        if what == "set":
            deadlines.set(key, instant)
            table[key] = instant
        elif what == "clear":
            deadlines.clear(key)
            table.pop(key, None)
        else:
            due = deadlines.pop_due(instant)
            instants = [table[k] for k in due]
            assert instants == sorted(instants)
            assert set(due) == {k for k, at in table.items() if at <= instant}
            for k in due:
                del table[k]
        assert deadlines.next() == min(table.values(), default=None)
        assert [deadlines.of(k) for k in "abcd"] == [table.get(k) for k in "abcd"]


def test_postponing_adds_nothing_to_the_heap() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for beat in range(1000):
        for key in range(10):
            deadlines.set(key, beat + 5.0)
        deadlines.pop_due(float(beat))
    assert len(deadlines._heap) == 10


def test_going_back_and_forth_does_not_fill_the_heap() -> None:
    """A session that breaks and returns moves its deadline to and fro."""
    deadlines: Deadlines[str] = Deadlines()
    for flap in range(10_000):
        deadlines.set("a", 1e6 + flap)
        deadlines.set("a", 1e5 - flap)
        deadlines.next()
    assert len(deadlines._heap) <= 100
    assert deadlines.next() == 1e5 - 9_999
