"""Files of secrets are read if they are private, and refused with a sentence else."""

import errno
import os
from pathlib import Path

import pytest

from drumbeat.access import files
from drumbeat.access.files import PEM_BYTES_MAX, TOKEN_BYTES_MAX, read_private, read_public
from drumbeat.access.problem import AccessProblem

SECRET = "a-secret-of-some-length"


def secret_file(folder: Path, content: bytes = SECRET.encode(), mode: int = 0o600) -> str:
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def refusal(path: str) -> AccessProblem:
    with pytest.raises(AccessProblem) as caught:
        read_private(path, "token file")
    assert path in caught.value.text
    assert SECRET not in f"{caught.value.text} {caught.value.hint}"
    return caught.value


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(tmp_path: Path, mode: int) -> None:
    assert read_private(secret_file(tmp_path, mode=mode), "token file") == SECRET


def test_a_link_is_followed_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(secret_file(tmp_path))
    assert read_private(str(tmp_path / "link"), "token file") == SECRET


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o640), (0, 0o440), (0, 0o600), (1234, 0o600)])
def test_roots_file_may_be_readable_by_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
) -> None:
    own(monkeypatch, owner)
    assert read_private(secret_file(tmp_path, mode=mode), "token file") == SECRET


@pytest.mark.parametrize(
    ("owner", "mode", "advice"),
    [
        (1234, 0o644, "chmod 600 "),
        (1234, 0o640, "chmod 600 "),
        (1234, 0o602, "chmod 600 "),
        (0, 0o644, "chmod 640 "),
        (0, 0o660, "chmod 640 "),
        (0, 0o604, "defaultMode: 0440"),
    ],
)
def test_a_file_that_others_can_read_or_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, advice: str
) -> None:
    own(monkeypatch, owner)
    path = secret_file(tmp_path, mode=mode)
    problem = refusal(path)
    assert problem.text == f"the token file {path} is open to other users: its mode is {mode:04o}"
    assert advice in problem.hint
    assert problem.is_final
    assert read_public(path, "certificate") == SECRET


def own(monkeypatch: pytest.MonkeyPatch, owner: int) -> None:
    """Make every file look as if it had that owner: only root can give one away."""
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[4] = owner
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    assert refusal(path).text == f"the token file {path} does not exist"


def test_a_path_that_no_file_can_have_is_no_file() -> None:
    with pytest.raises(AccessProblem, match="does not exist"):
        read_private("a\0b", "token file")


def test_what_a_terminal_would_act_on_is_shown_as_text() -> None:
    with pytest.raises(AccessProblem, match=r"file a\\x1b\[2Jb does not exist"):
        read_private("a\x1b[2Jb", "token file")


def test_a_directory_is_no_token_file(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)).text.endswith("is a directory")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert refusal(str(tmp_path / "pipe")).text.endswith("is no regular file")


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert refusal(secret_file(tmp_path, content)).text.endswith("is empty")


def test_a_file_that_is_too_large_is_refused_and_the_largest_is_read(tmp_path: Path) -> None:
    whole = "a" * TOKEN_BYTES_MAX
    assert read_private(secret_file(tmp_path, whole.encode()), "token file") == whole
    problem = refusal(secret_file(tmp_path, f"{whole}a".encode()))
    assert problem.text.endswith("is larger than 4096 bytes")
    with pytest.raises(AccessProblem, match="larger than 1048576 bytes"):
        read_public(secret_file(tmp_path, b"a" * (PEM_BYTES_MAX + 1)), "certificate")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    assert refusal(secret_file(tmp_path, b"\xff\xfe" + SECRET.encode())).text.endswith(
        "is not text"
    )


@pytest.mark.parametrize(
    ("number", "is_final"),
    [(errno.EACCES, True), (errno.EIO, False), (errno.ESTALE, False), (errno.EMFILE, False)],
)
def test_only_what_stays_as_it_is_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_final: bool
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "_open", fail)
    problem = refusal(str(tmp_path / "token"))
    assert problem.text.endswith(f"cannot be read: {os.strerror(number)}")
    assert problem.is_final is is_final
