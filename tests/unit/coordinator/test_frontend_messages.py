"""What front ends and their coordinator tell each other is the same on both sides."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.frontends import messages as ms

CALLS = st.integers(1, 2**40)
DATA = st.binary(max_size=200)
METADATA = st.lists(
    st.tuples(st.text(max_size=8), st.one_of(st.text(max_size=8), DATA)), max_size=3
).map(tuple)
UP = st.one_of(
    st.builds(ms.Listening, st.text(max_size=9)),
    st.just(ms.Paused()),
    st.just(ms.Handshake()),
    st.just(ms.Alive()),
    st.builds(
        ms.Begun, CALLS, st.text(), METADATA, st.text(), st.dictionaries(st.text(), st.lists(DATA))
    ),
    st.builds(ms.Said, CALLS, DATA),
    st.builds(ms.Taken, CALLS),
    st.builds(ms.SaidAll, CALLS),
    st.builds(ms.Left, CALLS),
)
IDENTITIES = st.one_of(
    st.none(),
    st.builds(ms.Identity, DATA, DATA),
    st.builds(ms.Files, st.text(), st.text(), st.none() | st.text()),
)
DOWN = st.one_of(
    st.builds(
        ms.Open,
        st.text(),
        st.lists(st.tuples(st.text(), st.integers(-1, 2**31)), max_size=2).map(tuple),
        st.lists(st.text(), max_size=2).map(tuple),
        st.floats(0, 10),
        IDENTITIES,
    ),
    st.builds(ms.Identity, DATA, DATA),
    st.just(ms.Alive()),
    st.builds(ms.Stop, st.floats(0, 10)),
    st.builds(ms.Said, CALLS, DATA),
    st.builds(ms.Taken, CALLS),
    st.builds(ms.Greeted, CALLS, METADATA),
    st.builds(ms.Ended, CALLS, st.integers(0, 16), st.text(), METADATA),
)


@given(st.lists(UP, max_size=9), st.integers(1, 50))
def test_what_is_told_to_the_coordinator_comes_in_any_pieces(
    told: list[ms.ToCoordinator], size: int
) -> None:
    assert heard(told, ms.ToCoordinator, size) == told


@given(st.lists(DOWN, max_size=9), st.integers(1, 50))
def test_what_is_told_to_a_front_end_comes_in_any_pieces(
    told: list[ms.ToFrontEnd], size: int
) -> None:
    assert heard(told, ms.ToFrontEnd, size) == told


def test_one_write_of_many_messages_is_read_in_batches() -> None:
    told = [ms.Taken(number) for number in range(3 * ms.BATCH_MAX + 1)]
    assert heard(told, ms.ToCoordinator, 10**6) == told


def heard(told: Sequence[ms.Message], kinds: object, size: int) -> list[ms.Message]:
    """Return what the other side makes of messages that come in pieces of this size."""
    data, decoder = ms.encoded(told), ms.Decoder(kinds)
    pieces = (data[first : first + size] for first in range(0, len(data), size))
    return [message for piece in pieces for message in decoder.decoded(piece)]
