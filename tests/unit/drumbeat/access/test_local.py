"""A coordinator's own user finds what it wrote; nobody else can read it or put it there."""

import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.access import local
from drumbeat.access.problem import AccessProblem
from drumbeat.access.token import Role, Token
from drumbeat.text.addresses import HostPort

TOKEN = Token(Role.ADMIN, "local000", "s" * 22, "c" * 44).text()
OTHER = Token(Role.ADMIN, "local001", "t" * 22, "c" * 44).text()
PORT = 29400
STRANGER = os.getuid() + 1


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two directories, as those of the user database and of the environment."""
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    monkeypatch.setattr(local, "_places", lambda: [(place, "a/b") for place in places])
    before = os.umask(0o022)
    yield places
    os.umask(before)


def published(text: str = TOKEN, port: int = PORT) -> Path:
    path = local.publish(port, text)
    assert path is not None
    return path


@pytest.mark.parametrize("text", [TOKEN, local.INSECURE])
def test_what_is_published_is_found_at_its_port(homes: list[Path], text: str) -> None:
    assert local.find(PORT) is None
    assert [list(home.iterdir()) for home in homes] == [[], []]
    path = published(text)
    assert path.is_relative_to(homes[0])
    assert (local.find(PORT), local.find(PORT + 1)) == (text, None)


@pytest.mark.parametrize("mask", [0, 0o277])
def test_only_its_user_can_read_it_whatever_the_umask(homes: list[Path], mask: int) -> None:
    if mask:
        (homes[0] / "a" / "b").mkdir(parents=True, mode=0o700)
    os.umask(mask)
    path = published()
    modes = [place.stat().st_mode & 0o777 for place in (path, path.parent, path.parent.parent)]
    assert modes[:2] == [0o600, 0o700]
    assert modes[2] == 0o700 or mask


def test_the_next_coordinator_of_a_port_replaces_what_a_killed_one_left(homes: list[Path]) -> None:
    assert published(TOKEN) == published(OTHER)
    assert local.find(PORT) == OTHER
    assert len(list((homes[0] / "a" / "b").iterdir())) == 1


def test_withdrawing_removes_ones_own_and_not_the_next_ones(homes: list[Path]) -> None:
    path = published(TOKEN)
    published(OTHER)
    local.withdraw(path, TOKEN)
    assert local.find(PORT) == OTHER
    local.withdraw(path, OTHER)
    assert local.find(PORT) is None
    local.withdraw(path, OTHER)
    assert homes[0].exists()


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_place_that_cannot_be_written_is_passed_over(homes: list[Path], is_missing: bool) -> None:
    if is_missing:
        homes[0].rmdir()
    else:
        (homes[0] / "a").write_text("no directory")
    assert published().is_relative_to(homes[1])
    assert homes[0].exists() is not is_missing
    assert local.find(PORT) == TOKEN
    (homes[1] / "a" / "b").rename(homes[1] / "c")
    (homes[1] / "a" / "b").touch()
    assert local.publish(PORT, TOKEN) is None
    assert local.find(PORT) is None


def test_a_link_instead_of_the_directory_is_not_followed(homes: list[Path], tmp_path: Path) -> None:
    path = published()
    path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(tmp_path / "moved")
    assert local.find(PORT) is None
    assert published().is_relative_to(homes[1])


def test_a_pipe_or_link_instead_of_the_file_is_neither_read_nor_written(homes: list[Path]) -> None:
    path = published()
    victim = path.with_name("victim")
    path.rename(victim)
    os.mkfifo(path, 0o600)
    assert local.find(PORT) is None
    path.unlink()
    path.symlink_to(victim)
    assert local.find(PORT) is None
    assert published(OTHER) == path
    assert not path.is_symlink()
    assert victim.read_text() == TOKEN
    assert homes[0] in path.parents


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_can_read_or_write_does_not_count(homes: list[Path], mode: int) -> None:
    published().chmod(mode)
    assert local.find(PORT) is None
    assert homes


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_does_not_count(homes: list[Path], mode: int) -> None:
    published().parent.chmod(mode)
    assert local.find(PORT) is None
    assert published().is_relative_to(homes[1])


def test_what_another_user_owns_does_not_count(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory in /tmp may have been taken first, with all that is in it."""
    published()
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert local.find(PORT) is None
    assert local.publish(PORT, OTHER) is None
    assert [path.name for path in homes[0].rglob("*.*")] == []


@pytest.mark.parametrize("text", ["", "rubbish", TOKEN[:-1], "\xff", "insecure\n", "a" * 5000])
def test_what_is_no_token_does_not_count(homes: list[Path], text: str) -> None:
    path = published()
    path.write_text(text, encoding="latin1")
    assert local.find(PORT) is None
    homes.reverse()
    published(OTHER)
    homes.reverse()
    assert local.find(PORT) == OTHER
    local.withdraw(path, TOKEN)
    assert path.exists()


def test_another_boot_and_another_network_have_files_of_their_own(
    homes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts and containers may share a home."""
    published()
    for name in ("_BOOT", "_NETWORK"):
        (tmp_path / "instead").write_text("another one")
        with monkeypatch.context() as patch:
            patch.setattr(local, name, tmp_path / "instead")
            assert local.find(PORT) is None
            patch.setattr(local, name, tmp_path / "missing")
            published(OTHER)
    assert local.find(PORT) == TOKEN
    assert len(list((homes[0] / "a" / "b").iterdir())) == 3


def test_the_oldest_files_go_when_there_are_too_many(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "FILES_MAX", 3)
    for age, port in enumerate((4, 1, 2, 3)):
        os.utime(published(port=port), (1000 + age, 1000 + age))
    kept = published(port=5)
    half_written = kept.with_name(f"{kept.name}.0123abcd")
    half_written.touch()
    (kept.parent / "a users own").touch()
    os.utime(half_written, (0, 0))
    published(port=6)
    assert [port for port in range(1, 7) if local.find(port)] == [3, 5, 6]
    assert not half_written.exists()
    assert (kept.parent / "a users own").exists()
    assert homes


def test_the_file_of_a_coordinator_that_listens_is_kept(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What killed ones left goes first, also before what may be in use on another host."""
    monkeypatch.setattr(local, "FILES_MAX", 3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        in_use = listener.getsockname()[1]
        os.utime(published(port=in_use), (0, 0))
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(local, "_BOOT", tmp_path / "missing")
            os.utime(published(port=3), (0, 0))
        for port in (1, 2):
            published(port=port)
        assert [local.find(port) is not None for port in (in_use, 1, 2)] == [True, False, True]
    assert len(list((homes[0] / "a" / "b").iterdir())) == 3


def test_the_places_do_not_depend_on_what_environments_differ_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    assert local._places()[0] == (home, ".local/state/drumbeat/access")


def test_a_user_without_an_entry_has_places_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as some number."""

    def unknown(_user: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setenv("HOME", "/some/home")
    assert local._places() == [
        (Path("/some/home"), ".local/state/drumbeat/access"),
        (Path("/run/user/4321"), "drumbeat"),
        (Path("/tmp"), "drumbeat-4321"),
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3", "::1", "192.0.2.7"])
def test_an_address_of_this_host_is_known(host: str) -> None:
    is_elsewhere = host.startswith("192.0.2.")  # of no host: for documentation
    assert local.is_this_host(HostPort(host, PORT)) is not is_elsewhere


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label empty or too long"), "label empty or too long"),
    ],
)
def test_a_host_that_is_not_known_may_be_known_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(AccessProblem, match=f"the host head is not known: {reason}") as caught:
        local.is_this_host(HostPort("head", PORT))
    assert not caught.value.is_final


def test_a_port_at_which_another_user_listens_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not local.is_of_another_user(port)
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
        assert local.is_of_another_user(port)
    assert not local.is_of_another_user(port)
