import pytest

from drumbeat.agent.multiprocessing import Std, to_map


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", Std.NONE),
        ("1", Std.OUT),
        ("2", Std.ERR),
        ("3", Std.ALL),
        ("0:1", {0: Std.OUT}),
        ("0:3,1:0,2:1,3:2", {0: Std.ALL, 1: Std.NONE, 2: Std.OUT, 3: Std.ERR}),
        ("7:1,15:3,128:2", {7: Std.OUT, 15: Std.ALL, 128: Std.ERR}),
    ],
)
def test_a_value_or_a_map_is_read(text: str, expected: object) -> None:
    assert Std.from_str(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "4", "-1", "03", "0:4", "0:", ":1", "a", "0:1,", "0:1;1:2", " 1", "1\n", "0:1\n", "٣"],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed are 0 \(none\), 1 \(stdout\)") as caught:
        Std.from_str(text)
    assert repr(text) in str(caught.value)


def test_a_rank_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="local rank 12 twice"):
        Std.from_str("12:1,3:1,12:2")


def test_one_value_is_meant_for_every_worker() -> None:
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}


def test_a_map_is_completed_and_cut() -> None:
    assert to_map({1: Std.OUT, 5: Std.ALL}, 3) == {0: Std.NONE, 1: Std.OUT, 2: Std.NONE}
