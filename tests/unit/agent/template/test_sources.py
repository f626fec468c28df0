"""Whether a file has changed that preloading has read."""

import os
from pathlib import Path

import pytest

from drumbeat.agent.workers.template.differences import sources
from drumbeat.agent.workers.template.differences.sources import Sources


def noted(*paths: Path) -> Sources:
    found = Sources()
    for path in paths:
        found.note(str(path))
    found.finish()
    return found


@pytest.mark.parametrize("number", [0, 30, 74, 75, 149])
def test_on_a_slow_file_system_each_file_is_looked_at_within_a_bounded_number_of_looks(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the time of a look is over as it begins, so it sees the fewest files it may."""
    monkeypatch.setattr(sources, "LOOK_FILES_MIN", 50)
    paths = [tmp_path / f"{each}.py" for each in range(150)]
    for path in paths:
        path.write_text("1")
    known = noted(*paths)
    assert known.changed(lambda: True) == ""
    assert known.is_behind
    paths[number].write_text("edited")
    looks = [known.changed(lambda: True) for _ in range(3)]
    assert str(paths[number]) in looks


def test_the_bound_holds_for_as_many_files_as_are_watched() -> None:
    assert sources.LOOKS_MAX * sources.LOOK_FILES_MIN >= sources.FILES_MAX
    known = Sources()
    for number in range(sources.FILES_MAX + 10):
        known.note(f"/missing/{number}.py")
    assert len(known) == sources.FILES_MAX


def test_a_look_that_has_time_sees_all_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{each}.py" for each in range(2 * sources.LOOK_FILES_MIN)]
    for path in paths:
        path.write_text("1")
    known = noted(*paths)
    assert known.changed(lambda: False) == ""
    assert not known.is_behind
    paths[-1].unlink()
    assert known.changed(lambda: False) == str(paths[-1])


def test_a_file_that_appears_is_a_change(tmp_path: Path) -> None:
    known = noted(tmp_path / "optional.yaml")
    assert known.changed(lambda: False) == ""
    (tmp_path / "optional.yaml").write_text("1")
    assert known.changed(lambda: False) == str(tmp_path / "optional.yaml")


def test_data_that_preloading_writes_or_removes_itself_is_not_watched(tmp_path: Path) -> None:
    cache, scratch, conf = (tmp_path / name for name in ("cache", "scratch", "conf"))
    known = Sources()
    for path in (cache, scratch, conf):
        path.write_text("1")
        known.note_data(str(path), is_written=False)
    known.note_data(str(cache), is_written=True)
    cache.write_text("other")
    scratch.unlink()
    known.finish()
    assert known.changed(lambda: False) == ""
    conf.write_text("other")
    assert known.changed(lambda: False) == str(conf)


def test_neither_libraries_nor_what_is_no_regular_file_is_watched(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    known = noted(pipe)
    before = pipe.stat()
    os.utime(pipe, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert known.changed(lambda: False) == ""
    for path in (os.__file__, "/x/site-packages/a.py", "/proc/self/maps", "built-in", "frozen"):
        known.note(path)
    assert len(known) == 1
