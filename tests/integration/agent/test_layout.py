"""Private directories on a real disk: who may take them, what becomes of them."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from drumbeat.agent.errors import PrivateDirectoryUnusable
from drumbeat.agent.host import private_directory as layout
from drumbeat.agent.host.private_directory import (
    SOCKET_NAME_BYTES_MAX,
    SOCKET_PATH_BYTES_MAX,
    PrivateDirectory,
)

ANOTHER_USER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def abandon(place: Path) -> Path:
    """Leave a directory behind that nothing holds any more, as that of a killed process."""
    with closing(PrivateDirectory([str(place)])) as directory:
        directory.ensure("errors", "0")
        left = directory.path.with_name(f"{directory.path.name[:-8]}12345678")
        shutil.copytree(directory.path, left)
    return left


def leave_by_kill(place: Path) -> Path:
    """Have a process make a directory and kill itself."""
    code = (
        "import os, signal, sys;"
        "from drumbeat.agent.host.private_directory import PrivateDirectory;"
        "directory = PrivateDirectory([sys.argv[1]]); directory.ensure('errors', '0');"
        "print(directory.path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(place)]
    output = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()
    assert output.startswith(str(place))  # what is removed here is nothing else
    return Path(output)


def nothing_wanted(_path: Path) -> bool:
    return False


def test_it_is_private_and_gone_when_it_is_closed(place: Path) -> None:
    with closing(PrivateDirectory([str(place)])) as directory:
        below = directory.ensure("a", "b")
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (directory.path, below)]
        assert modes == [0o700, 0o700]
        (below / "file").touch()
    assert not list(place.iterdir())


@needs_root
def test_what_another_user_has_put_there_before_is_in_no_way(place: Path) -> None:
    """Every name that begins as ours do and can be known before is taken, as by an attacker."""
    name = f"drumbeat-{os.getuid()}"
    (place / name).mkdir()
    os.chown(place / name, ANOTHER_USER, ANOTHER_USER)
    (place / f"{name}-").symlink_to("/nowhere")
    with closing(PrivateDirectory([str(place)])) as directory:
        assert directory.path.parent == place
        directory.collect(nothing_wanted)
    assert len(list(place.iterdir())) == 2, "what is not ours was removed"


def test_the_next_process_collects_what_a_killed_one_left_and_spares_the_living(
    place: Path,
) -> None:
    left = leave_by_kill(place)
    assert left.exists()
    with (
        closing(PrivateDirectory([str(place)])) as living,
        closing(PrivateDirectory([str(place)])) as directory,
    ):
        directory.collect(nothing_wanted)
        assert not left.exists()
        assert living.path.exists()
        assert directory.path.exists()


def test_what_was_left_is_collected_while_the_disk_there_is_full(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python names another directory for temporary files then."""
    temporary, spare = place / "temporary", place / "spare"
    temporary.mkdir()
    spare.mkdir()
    left = leave_by_kill(temporary)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(spare))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with closing(PrivateDirectory()) as directory:
        assert directory.path.parent == spare
        directory.collect(nothing_wanted)
    assert not left.exists()


@pytest.mark.parametrize(
    "change", [pytest.param("owner", marks=needs_root), "mode", "link", "file"]
)
def test_what_only_looks_like_ours_is_not_collected(place: Path, change: str) -> None:
    left = abandon(place)
    if change == "owner":
        os.chown(left, ANOTHER_USER, ANOTHER_USER)
    elif change == "mode":
        left.chmod(0o755)
    elif change == "link":
        target = left.rename(place / "elsewhere")
        left.symlink_to(target)
    else:
        shutil.rmtree(left)
        left.touch()
    with closing(PrivateDirectory([str(place)])) as directory:
        directory.collect(nothing_wanted)
    assert os.path.lexists(left)


def test_one_agent_collects_a_bounded_number(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "ABANDONED_MAX", 2)
    with closing(PrivateDirectory([str(place)])) as directory:
        prefix = directory.path.name[:-8]
        for number in range(5):
            (place / f"{prefix}{number}").mkdir(mode=0o700)
        directory.collect(nothing_wanted)
        directory.collect(nothing_wanted)
        assert 2 <= len(list(place.iterdir())) <= 5


def test_what_a_cleaner_has_removed_is_made_again_where_it_was(place: Path) -> None:
    with closing(PrivateDirectory([str(place)])) as directory:
        before = directory.path
        shutil.rmtree(before)
        assert directory.ensure("errors") == before / "errors"
        assert stat.S_IMODE(before.stat().st_mode) == 0o700
        with closing(PrivateDirectory([str(place)])) as other:
            other.collect(nothing_wanted)
        assert before.exists(), "it is not held"
    assert not list(place.iterdir())


@needs_root
def test_a_place_that_another_user_took_meanwhile_is_left_to_him(place: Path) -> None:
    with closing(PrivateDirectory([str(place)])) as directory:
        before = directory.path
        shutil.rmtree(before)
        before.mkdir()
        os.chown(before, ANOTHER_USER, ANOTHER_USER)
        assert directory.ensure() != before
        assert directory.ensure().exists()
    assert before.exists()


def test_where_the_whole_place_is_gone_another_one_is_taken(place: Path) -> None:
    gone = place / "gone"
    gone.mkdir()
    with closing(PrivateDirectory([str(gone), str(place)])) as directory:
        shutil.rmtree(gone)
        assert directory.ensure().parent == place


def test_a_place_too_deep_for_sockets_is_the_last_choice(place: Path) -> None:
    deep = place / ("x" * SOCKET_PATH_BYTES_MAX)
    deep.mkdir()
    with closing(PrivateDirectory([str(deep), str(place)])) as directory:
        assert directory.path.parent == place
        length = len(os.fsencode(directory.path / ("x" * SOCKET_NAME_BYTES_MAX)))
        assert length <= SOCKET_PATH_BYTES_MAX


def test_without_a_writable_disk_it_is_in_memory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_temporary_directory() -> str:
        raise FileNotFoundError

    for name in ("XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_directory)
    monkeypatch.setattr(layout, "SPARE_PLACES", (str(place / "missing"), str(place)))
    with closing(PrivateDirectory()) as directory:
        assert directory.path.parent == place
        assert (directory.path, True) in layout.private_directories()
    monkeypatch.setattr(layout, "SPARE_PLACES", (str(place / "missing"),))
    with pytest.raises(PrivateDirectoryUnusable, match=r"missing: No such file") as raised:
        PrivateDirectory()
    assert "set TMPDIR" in raised.value.hint


def test_without_any_place_it_says_what_is_wrong_with_each(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SPARE_PLACES", (str(place / "b"),))
    with pytest.raises(PrivateDirectoryUnusable) as raised:
        PrivateDirectory([str(place / "a")])
    problem = "No such file or directory"
    assert raised.value.args[0] == f"{place}/a: {problem}; {place}/b: {problem}"


def test_a_file_system_without_locks_will_do(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _how: int) -> None:
        raise OSError(38, "Function not implemented")

    left = abandon(place)
    monkeypatch.setattr("fcntl.flock", refuse)
    with closing(PrivateDirectory([str(place)])) as directory:
        directory.collect(nothing_wanted)
        assert directory.ensure().exists()
    assert left.exists(), "whether its owner lives can't be known"


@needs_root
def test_the_runtime_directory_of_a_login_is_taken_only_if_it_is_private(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tempfile.gettempdir()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert layout.private_places() == [str(place), temporary]
    place.chmod(0o755)
    assert layout.private_places() == [temporary]
    place.chmod(0o700)
    os.chown(place, ANOTHER_USER, ANOTHER_USER)
    assert layout.private_places() == [temporary]
    for path in ("", "relative", str(place / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        assert layout.private_places() == [temporary]
    os.chown(place, os.getuid(), os.getgid())
    (place / "link").symlink_to(place)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "link"))
    assert layout.private_places() == [temporary], "whoever owns a link may turn it elsewhere"


@pytest.mark.parametrize(
    ("mode", "is_exposed"),
    [(0o700, False), (0o755, False), (0o1777, False), (0o777, True), (0o770, True)],
)
def test_a_place_is_exposed_if_others_may_rename_what_is_in_it(
    place: Path, mode: int, is_exposed: bool
) -> None:
    """Or in any directory above it."""
    below = place / "below"
    below.mkdir(mode=0o700)
    place.chmod(mode)
    assert layout.is_exposed(str(place)) is is_exposed
    assert layout.is_exposed(str(below)) is is_exposed
    assert layout.is_exposed(str(place / "missing"))


@needs_root
def test_a_place_below_a_directory_of_another_user_is_exposed(place: Path) -> None:
    below = place / "below"
    below.mkdir(mode=0o700)
    os.chown(place, ANOTHER_USER, ANOTHER_USER)
    assert layout.is_exposed(str(below))


def test_an_exposed_place_is_taken_only_if_there_is_no_other(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all, ours = place / "open", place / "ours"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    ours.mkdir(mode=0o700)
    with closing(PrivateDirectory([str(open_to_all), str(ours)])) as directory:
        assert directory.path.parent == ours
    monkeypatch.setattr(layout, "SPARE_PLACES", (str(open_to_all),))
    with closing(PrivateDirectory([str(open_to_all)])) as directory:
        assert directory.path.parent == open_to_all


def test_what_comes_about_with_rights_for_others_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without modes, or where another user was quicker."""
    made = tempfile.mkdtemp

    def make_readable(prefix: str, dir: str) -> str:  # noqa: A002 - as it is called
        path = made(prefix=prefix, dir=dir)
        os.chmod(path, 0o755)  # noqa: PTH101
        return path

    monkeypatch.setattr("tempfile.mkdtemp", make_readable)
    monkeypatch.setattr(layout, "SPARE_PLACES", (str(place),))
    with pytest.raises(PrivateDirectoryUnusable, match="other users can access"):
        PrivateDirectory([str(place)])
    assert list(place.iterdir()) == []


@needs_root
def test_what_others_plant_keeps_no_agent_from_tidying_up(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "ABANDONED_MAX", 2)  # with the one that looks
    left = abandon(place)
    prefix = left.name[: -len("12345678")]
    planted = [place / f"{prefix}{index}" for index in range(3)]
    for path in planted:
        path.mkdir()
        os.chown(path, ANOTHER_USER, ANOTHER_USER)
    (place / f"{prefix}link").symlink_to(place)
    with closing(PrivateDirectory([str(place)])) as directory:
        directory.collect(nothing_wanted)
        assert all(path.exists() for path in planted)
    assert not left.exists()
