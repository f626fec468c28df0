"""Which variables a worker may have otherwise than its template."""

import pytest

from drumbeat.agent.workers.template.differences.environment import after_imports, too_late


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("RANK", "mine read RANK while preloading"),
        ("OMP_NUM_THREADS", "OMP_NUM_THREADS differs among workers"),
        ("PYTHONHASHSEED", "PYTHONHASHSEED differs among workers"),
        ("LD_PRELOAD", "LD_PRELOAD differs among workers"),
    ],
)
def test_a_variable_must_not_differ_that_was_read_already(name: str, word: str) -> None:
    reads = {"RANK": "mine", "HOME": "os"}
    assert word in too_late(reads, {"HOME": "/"}, {name: "1"})
    assert word in too_late(reads, {name: "2"}, {name: "1"})
    assert too_late(reads, {name: "1"}, {name: "1", "LOCAL_RANK": "0"}) == ""


@pytest.mark.parametrize(
    ("before", "after", "worker", "expected"),
    [
        ({}, {"A": "set"}, {}, {"A": "set"}),
        ({"A": "old"}, {"A": "new"}, {"A": "old"}, {"A": "new"}),
        ({"A": "old"}, {"A": "new"}, {"A": "its own"}, {"A": "its own"}),
        ({"A": "old"}, {}, {"A": "old"}, {}),
        ({}, {"A": "set"}, {"A": "its own"}, {"A": "its own"}),
        ({"A": "old"}, {"A": "old"}, {"B": "its own"}, {"B": "its own"}),
    ],
)
def test_what_imports_set_holds_unless_the_worker_has_its_own(
    before: dict[str, str], after: dict[str, str], worker: dict[str, str], expected: dict[str, str]
) -> None:
    assert after_imports(before, after, worker) == expected
