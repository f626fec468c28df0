"""The figures of the benchmarks are reckoned and shown as they were measured."""

import pytest

from bench.harness import Question, ask, summarise, table
from bench.ways import Way, in_each_way


def test_a_summary_has_median_and_percentiles() -> None:
    summary = summarise([5.0, 1.0, 3.0, 2.0, 4.0])
    assert summary == {
        "n": 5,
        "never": 0,
        "median": 3.0,
        "p10": 1.4,
        "p90": 4.6,
        "min": 1.0,
        "max": 5.0,
        "values": [5.0, 1.0, 3.0, 2.0, 4.0],
    }


def test_what_did_not_happen_is_counted_and_left_out_of_the_median() -> None:
    assert summarise([None, 2.0]) == {
        "n": 2,
        "never": 1,
        "median": 2.0,
        "p10": 2.0,
        "p90": 2.0,
        "min": 2.0,
        "max": 2.0,
        "values": [None, 2.0],
    }
    assert summarise([None, None]) == {"n": 2, "never": 2, "values": [None, None]}


def test_both_sides_take_turns_and_are_compared_by_their_medians(
    capsys: pytest.CaptureFixture[str],
) -> None:
    order: list[str] = []
    ours = iter([1.0, 2.0, 3.0])
    theirs = iter([8.0, 4.0, None])

    def measure_ours() -> float:
        order.append("ours")
        return next(ours)

    def measure_theirs() -> float | None:
        order.append("torchrun")
        return next(theirs)

    question = Question("name", "how long", "s", measure_ours, measure_theirs, never="not once")
    answer = ask(question, ["ours", "torchrun"], 3)
    assert order == ["ours", "torchrun"] * 3
    assert answer["ratios"] == {"torchrun": 3.0}
    assert table([answer]).splitlines()[2:] == [
        "| how long | 3 | 2 s (1.2 to 2.8) | 6 s (4.4 to 7.6), 1 of 3 not once | 3 |"
    ]
    assert "name 3 torchrun: None" in capsys.readouterr().err


def test_a_question_that_only_one_side_can_answer_has_no_ratio() -> None:
    never = ask(Question("a", "when", "s", lambda: 1.0, lambda: None), ["ours", "torchrun"], 1)
    alone = ask(Question("b", "why", "s", lambda: 1.0), ["ours", "torchrun"], 1)
    failed = {"name": "c", "text": "who", "error": "nobody"}
    assert table([never, alone, failed]).splitlines()[2:] == [
        "| when | 1 | 1 s | never | - |",
        "| why | 1 | 1 s | - | - |",
        "| who | - | failed, see above | | |",
    ]


def test_each_way_of_ours_has_a_column_with_what_the_default_takes_of_it() -> None:
    took = {Way.DEFAULT: 2.2, Way.INSECURE: 2.0, Way.BEFORE: 1.1}
    in_all = Question("a", "when", "s", torchrun=lambda: 4.4, **in_each_way(took.__getitem__))
    plain = Question("b", "why", "s", lambda: 1.0)
    ways = [str(way) for way in Way]
    answers = [ask(question, [*ways, "torchrun"], 1) for question in (in_all, plain)]
    failed = {"name": "c", "text": "who", "error": "nobody"}
    assert table([*answers, failed]).splitlines() == [
        (
            "| question | n | drumbeat | with --insecure | drumbeat / --insecure"
            " | before | drumbeat / before | torchrun | torchrun / drumbeat |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| when | 1 | 2.2 s | 2 s | 1.1 | 1.1 s | 2 | 4.4 s | 2 |",
        "| why | 1 | 1 s | - | - | - | - | - | - |",
        "| who | - | failed, see above | | | | | | |",
    ]
