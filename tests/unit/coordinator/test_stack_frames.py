"""What a stack tells of a rank: where it is, and whether it waits for other ranks."""

import pytest

from drumbeat.coordinator.core.failures.stack_frames import (
    Activity,
    Frame,
    activity_of,
    frames_of,
    place,
    telling_frames,
)
from drumbeat.text.format import ranges
from tests.support.hangs import ALL_REDUCE, BACKWARD, BARRIER, COPY, LOADER, LOCK, TORCH, a_stack


def test_the_calls_of_the_first_thread_are_read_innermost_first() -> None:
    frames = frames_of(f"{LOADER}\n{ALL_REDUCE}")
    assert frames[0] == Frame("/home/u/data.py", 9, "__getitem__")
    assert frames[-1] == Frame("/home/u/train.py", 99, "<module>")
    assert len(frames) == 4


@pytest.mark.parametrize(
    "stacks",
    ["", "\n", "no stack at all", "Thread (most recent call first):\n  <no Python frame>\n"],
)
def test_a_stack_without_python_code_has_no_calls(stacks: str) -> None:
    assert frames_of(stacks) == ()
    assert telling_frames(stacks) == ()
    assert activity_of(()) is Activity.BUSY
    assert place(()) == "no Python code"


def test_the_path_of_a_file_may_have_quotes_and_look_like_a_call() -> None:
    file = '/home/u/a", line 3 in b.py'
    assert frames_of(a_stack((file, 9, "f"))) == (Frame(file, 9, "f"),)


@pytest.mark.parametrize(
    ("stacks", "activity"),
    [
        (ALL_REDUCE, Activity.WAITS),
        (BARRIER, Activity.WAITS),
        (BACKWARD, Activity.MAY_WAIT),
        (LOADER, Activity.BUSY),
        (LOCK, Activity.BUSY),
        (COPY, Activity.BUSY),
        (a_stack((f"{TORCH}/nn/parallel/distributed.py", 5, "_sync")), Activity.WAITS),
        (a_stack((f"{TORCH}/distributed/fsdp/_runtime_utils.py", 5, "_un")), Activity.WAITS),
        (a_stack((f"{TORCH}/distributed/checkpoint/writer.py", 5, "_w")), Activity.BUSY),
        (a_stack((f"{TORCH}/distributed/elastic/agent.py", 5, "_w")), Activity.BUSY),
        (a_stack(("/x/site-packages/horovod/torch/mpi_ops.py", 5, "syn")), Activity.WAITS),
        (a_stack(("/x/site-packages/deepspeed/comm/comm.py", 5, "red")), Activity.WAITS),
        (a_stack((f"{TORCH}/cuda/__init__.py", 5, "synchronize")), Activity.MAY_WAIT),
        (a_stack(("/home/u/torch/distributed.py", 5, "mine")), Activity.BUSY),
    ],
)
def test_what_a_rank_does_is_read_from_its_innermost_call(stacks: str, activity: Activity) -> None:
    assert activity_of(telling_frames(stacks)) is activity


@pytest.mark.parametrize(
    ("line", "activity"),
    [
        ("loss = total.item()", Activity.MAY_WAIT),
        ("work.wait()", Activity.MAY_WAIT),
        ("torch.cuda.synchronize()", Activity.MAY_WAIT),
        ("values = grads.cpu().numpy()", Activity.MAY_WAIT),
        ("time.sleep(100)", Activity.BUSY),
        ("lock.acquire()", Activity.BUSY),
        ("self.waiter(1)", Activity.BUSY),
        ("", Activity.BUSY),
    ],
)
def test_a_call_of_c_that_may_wait_shows_in_the_source(line: str, activity: Activity) -> None:
    assert activity_of(telling_frames(COPY), line) is activity


def test_a_collective_is_a_collective_whatever_its_line_says() -> None:
    assert activity_of(telling_frames(ALL_REDUCE), "work.wait()") is Activity.WAITS


WAITS_FOR_THREAD = a_stack(
    ("/usr/lib/python3.12/threading.py", 1149, "join"), ("/home/u/train.py", 8, "main")
)


def test_a_first_thread_that_waits_for_another_that_waits_for_ranks_is_not_what_counts() -> None:
    found = telling_frames(f"{WAITS_FOR_THREAD}\n{LOADER}\n{ALL_REDUCE}")
    assert found == frames_of(ALL_REDUCE)


def test_a_first_thread_that_waits_for_one_that_waits_for_no_rank_is_what_counts() -> None:
    found = telling_frames(f"{WAITS_FOR_THREAD}\n{LOADER}")
    assert found == frames_of(WAITS_FOR_THREAD)


def test_other_threads_do_not_count_if_the_first_waits_for_none() -> None:
    assert telling_frames(f"{LOADER}\n{ALL_REDUCE}") == frames_of(LOADER)


@pytest.mark.parametrize(
    ("stacks", "where"),
    [
        (ALL_REDUCE, "all_reduce (train.py:20)"),
        (BACKWARD, "backward (train.py:20)"),
        (LOADER, "__getitem__ (data.py:9)"),
        (COPY, "log (train.py:40)"),
        (a_stack((f"{TORCH}/x.py", 3, "a"), (f"{TORCH}/y.py", 4, "b")), "a (x.py:3)"),
    ],
)
def test_a_place_is_what_the_users_own_code_called_and_from_which_line(
    stacks: str, where: str
) -> None:
    assert place(frames_of(stacks)) == where


def test_a_place_is_one_line_of_bounded_length() -> None:
    shown = place(frames_of(a_stack((f"/home/u/{'x' * 400}.py", 3, "f\x1b[31m" * 40))))
    assert len(shown) <= 80
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([3], "3"), ([3, 1, 2, 0, 7], "0-3,7"), ([5, 3, 9], "3,5,9"), ([2, 1], "1-2")],
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert ranges(ranks) == text
