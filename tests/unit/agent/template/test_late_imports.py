"""What is noted of imports in memory that is shared."""

import mmap

import pytest

from drumbeat.agent.workers.template import late_imports


def noted(*lines: str) -> mmap.mmap:
    memory = mmap.mmap(-1, late_imports.MEMORY_BYTES)
    content = "".join(f"{line}\n" for line in lines).encode()
    memory[:8] = len(content).to_bytes(8, "little")
    memory[8 : 8 + len(content)] = content
    return memory


def test_what_was_noted_is_read_in_order() -> None:
    found = late_imports.read(noted("1.5000 torch", "0.0002 a.b"))
    assert found == ([("torch", 1.5), ("a.b", 0.0002)], [])


def test_variables_that_were_set_too_late_are_told_apart_from_imports() -> None:
    memory = noted("1.5000 torch")
    late_imports.note_setting(memoryview(memory), "HF_HOME", "hub.constants")
    assert late_imports.read(memory) == ([("torch", 1.5)], [("HF_HOME", "hub.constants")])


def test_what_does_not_fit_is_not_noted() -> None:
    memory = mmap.mmap(-1, late_imports.MEMORY_BYTES)
    for number in range(5):
        late_imports.note_setting(memoryview(memory), f"{number}" * 20_000, "m")
    assert len(late_imports.read(memory)[1]) == 3


def test_memory_is_empty_at_first_and_when_it_was_emptied() -> None:
    assert late_imports.read(mmap.mmap(-1, late_imports.MEMORY_BYTES)) == ([], [])
    memory = noted("1.0 torch")
    late_imports.empty(memoryview(memory))
    assert late_imports.read(memory) == ([], [])


@pytest.mark.parametrize("content", [b"\xff" * 16, b"nonsense", b"1.0"])
def test_what_a_worker_has_overwritten_is_not_believed(content: bytes) -> None:
    """A worker may write there what it likes, by mistake; its supervisor goes on."""
    memory = mmap.mmap(-1, late_imports.MEMORY_BYTES)
    memory[:8] = b"\xff" * 8
    memory[8 : 8 + len(content)] = content
    assert late_imports.read(memory) == ([], [])
