"""Stacks of many workers, as one look at them."""

import pytest

from drumbeat.coordinator.api.verb_options import RANK
from drumbeat.coordinator.core.failures.stack_frames import Frame, frames_of, place
from drumbeat.coordinator.wire.stack_groups import Worker, document, grouped, text
from drumbeat.text.format import ranges

REDUCING = """Thread 0x00007f11 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d.py", line 2501 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/u/train.py", line 81 in step
  File "/home/u/train.py", line 99 in <module>

Thread 0x00007f12 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
"""
LOADING = """Thread 0x00007f33 (most recent call first):
  File "/home/u/data.py", line 40 in next_batch
  File "/home/u/train.py", line 99 in <module>
"""


def worker(rank: int, stacks: str = "", problem: str = "", name: str = "") -> Worker:
    return Worker(rank, rank % 8, name or f"gpu{rank // 8}", "host", 100 + rank, stacks, problem)


def test_one_rank_that_stands_elsewhere_is_seen_in_one_look() -> None:
    ranks = [worker(rank, REDUCING.replace("7f11", f"7f{rank:02}")) for rank in range(64)]
    ranks[17] = worker(17, LOADING, name="gpu3")
    first, second, *rest = text(ranks).splitlines()
    assert first == "in all_reduce (train.py:81): 63 ranks (0-16,18-63)"
    assert second == "in next_batch (data.py:40): 1 rank (17 on gpu3)"
    assert rest[0] == ""
    assert '  File "/home/u/data.py", line 40 in next_batch' in rest


def test_those_without_stacks_are_named_with_the_reason() -> None:
    silent = [worker(rank, problem=f"process {rank} is gone") for rank in (3, 4)]
    shown = text([worker(0, LOADING), *silent, worker(9, problem="its agent is not connected")])
    assert "2 ranks (3 on gpu0, 4 on gpu0) gave no stacks: its process is gone" in shown
    assert "1 rank (9 on gpu1) gave no stacks: its agent is not connected" in shown
    head, *_, last = shown.splitlines()
    assert head == "in next_batch (data.py:40): 1 rank (0 on gpu0)"
    assert last.startswith("1 rank (9 on gpu1) gave no stacks"), "groups and stacks come first"


def test_the_place_is_in_the_first_80_columns_however_long_names_are() -> None:
    function, file = f"__getitem__{'x' * 200}", f"/home/u/{'long_' * 50}data.py"
    stacks = f'Thread 0x1 (most recent call first):\n  File "{file}", line 1234567 in {function}\n'
    scattered = [worker(rank, stacks, name="n" * 60) for rank in range(0, 9_000, 2)]
    for ranks in (scattered[:3], scattered):
        line = text(ranks).splitlines()[0]
        assert line.startswith("in __getitem__xxx")
        assert ":1234567): " in line[:80]
        assert len(line) < 600


def test_the_reason_stands_before_what_the_process_does() -> None:
    state = f"process 7: sleeping, kernel stack: {'nanosleep < ' * 40}"
    silent = worker(3, problem=f"{state}; no stacks: the worker does not use the SDK")
    line = text([silent]).splitlines()[0]
    assert line.startswith(
        "1 rank (3 on gpu0) gave no stacks: the worker does not use the SDK (its process: sleeping"
    )
    (told,) = document("exp", [silent])["unanswered"]
    assert told["reason"] == f"the worker does not use the SDK ({state})"


def test_equal_calls_at_other_lines_are_other_groups() -> None:
    other = LOADING.replace("line 40", "line 41")
    groups = grouped([worker(0, LOADING), worker(1, other), worker(2, other)])
    assert [[each.rank for each in group.workers] for group in groups] == [[1, 2], [0]]


@pytest.mark.parametrize(
    ("frames", "shown"),
    [
        ((), "no Python code"),
        ((Frame("a/b.py", 3, "f"),), "f (b.py:3)"),
        ((Frame("/x/site-packages/t.py", 3, "g"),), "g (t.py:3)"),
        ((Frame("/x/site-packages/t.py", 3, "_impl"), Frame("u.py", 7, "f")), "f (u.py:7)"),
    ],
)
def test_a_place_is_of_the_users_own_code_if_there_is_any(
    frames: tuple[Frame, ...], shown: str
) -> None:
    assert place(frames) == shown


def test_what_would_act_on_a_terminal_is_written_out() -> None:
    stacks = 'Thread 0x1 (most recent call first):\n  File "\x1b[2J.py", line 1 in \x07f\n'
    shown = text([worker(0, stacks, name="a\x1bb"), worker(1, problem="x\x1b]0;\n")])
    assert all(line.isprintable() for line in shown.splitlines())


def test_a_thread_that_runs_no_python_has_a_group_too() -> None:
    assert frames_of("Thread 0x1 (most recent call first):\n  <no Python frame>\n") == ()


def test_the_document_has_the_names_that_are_documented() -> None:
    told = document("exp", [worker(0, LOADING), worker(1, problem="gone")])
    assert set(told) == {"run_id", "groups", "unanswered"}
    (group,) = told["groups"]
    assert (group["place"], group["ranks"]) == ("next_batch (data.py:40)", [0])
    assert group["frames"][0] == {"file": "/home/u/data.py", "line": 40, "function": "next_batch"}
    assert group["stacks"] == LOADING
    who = {"rank": 1, "local_rank": 1, "name": "gpu0", "host": "host", "pid": 101}
    assert told["unanswered"] == [{**who, "collective": "", "reason": "gone"}]


def test_ranks_are_shown_as_ranges() -> None:
    assert ranges([7, 0, 1, 2, 9, 10]) == "0-2,7,9-10"


def test_ranks_are_read_with_ranges() -> None:
    kind = RANK.kind
    assert kind.parse("3, 0-2,1") == (3, 0, 1, 2)
    for wrong in ("", "x", "3-1", "-1", "0-10000", "0-9999,10000", "1,,2"):
        with pytest.raises(ValueError, match="allowed is"):
            kind.parse(wrong)
