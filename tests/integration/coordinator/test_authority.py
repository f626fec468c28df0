"""The coordinator's own authority: its file, its certificates, and how it is replaced."""

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from drumbeat.access import certificates
from drumbeat.access.certificates import trust_anchors
from drumbeat.coordinator import errors
from drumbeat.coordinator.access import authority as module
from drumbeat.coordinator.access.authority import AUTHORITIES_MAX, Authority
from tests.support.certificates import private_pem
from tests.support.tls import serving

DAY = timedelta(days=1)


class Clock:
    """The time of day, which only a test moves."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


async def test_a_client_with_the_key_of_a_token_trusts_this_coordinator_and_no_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with serving(ours := Authority(tmp_path)) as server:
        assert await server.lets_in(trust_anchors(ours.keys))
        assert not await server.lets_in(trust_anchors(other.keys))


def test_its_file_is_private_and_a_restart_keeps_it(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        first = Authority(tmp_path)
    finally:
        os.umask(previous)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Authority(tmp_path).keys == first.keys
    assert len(first.keys) == 1


def test_what_a_first_start_left_half_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f"{module.FILE}.new").write_text("-----BEGIN PRIV")
    assert Authority(tmp_path).keys == Authority(tmp_path).keys
    assert [path.name for path in tmp_path.iterdir()] == [module.FILE]


async def test_a_certificate_suits_clocks_that_are_a_day_off(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(Authority(tmp_path, clock)) as server:
        shown = await server.certificate()
    assert shown.not_valid_before_utc < clock.now - 1.9 * DAY
    assert shown.not_valid_after_utc > clock.now + 80 * DAY


async def test_a_handshake_renews_a_certificate_once_two_thirds_of_it_are_over(
    tmp_path: Path,
) -> None:
    clock = Clock()
    authority = Authority(tmp_path, clock)
    async with serving(authority) as server:
        trusted = trust_anchors(authority.keys)
        async with server.connection(trusted) as call:
            assert await call() == b"x"
            first = await server.certificate()
            clock.now += 59 * DAY
            assert await server.certificate() == first
            clock.now += 2 * DAY
            renewed = await server.certificate()
            assert renewed.not_valid_after_utc > first.not_valid_after_utc + 60 * DAY
            assert await server.certificate() == renewed
            assert await call() == b"x"


async def test_a_clock_that_was_far_ahead_at_the_start_costs_one_more_certificate(
    tmp_path: Path,
) -> None:
    clock = Clock()
    right, clock.now = clock.now, clock.now + 400 * DAY
    authority = Authority(tmp_path, clock)
    async with serving(authority) as server:
        assert not await server.lets_in(trust_anchors(authority.keys))
        clock.now = right
        assert await server.lets_in(trust_anchors(authority.keys))


async def test_an_authority_is_replaced_with_an_overlap_while_a_connection_lives_on(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    old = trust_anchors(authority.keys)
    async with serving(authority) as server, server.connection(old) as call:
        assert await call() == b"x"
        (before,) = authority.keys
        assert authority.rotate() == authority.keys
        newest, oldest = authority.keys
        assert (newest != before, oldest) == (True, before)
        new = trust_anchors([newest])
        assert await server.lets_in(old)
        assert await server.lets_in(new)
        assert authority.retire() == [newest]
        assert not await server.lets_in(old)
        assert await server.lets_in(new)
        assert await call() == b"x"


async def test_each_of_several_rotations_keeps_all_before_until_they_are_retired(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    while len(authority.keys) < AUTHORITIES_MAX:
        authority.rotate()
    with pytest.raises(errors.LimitReached, match=f"authorities_max is reached: {AUTHORITIES_MAX}"):
        authority.rotate()
    async with serving(authority) as server:
        for key in authority.keys:
            assert await server.lets_in(trust_anchors([key]))
        kept, *gone = authority.keys
        assert authority.retire() == authority.retire() == [kept]
        assert await server.lets_in(trust_anchors([kept]))
        assert not await server.lets_in(trust_anchors(gone))


async def test_a_restart_amid_the_overlap_serves_both_and_after_it_the_newest(
    tmp_path: Path,
) -> None:
    Authority(tmp_path).rotate()
    restarted = Authority(tmp_path)
    newest, oldest = restarted.keys
    async with serving(restarted) as server:
        assert await server.lets_in(trust_anchors([oldest]))
        assert await server.lets_in(trust_anchors([newest]))
    restarted.retire()
    async with serving(Authority(tmp_path)) as server:
        assert not await server.lets_in(trust_anchors([oldest]))
        assert await server.lets_in(trust_anchors([newest]))


def test_a_rotation_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    keys = authority.keys

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(errors.Unavailable, match="No space left on device"):
            authority.rotate()
    assert authority.keys == keys == Authority(tmp_path).keys
    assert [path.name for path in tmp_path.iterdir()] == [module.FILE]
    assert len(authority.rotate()) == 2


async def test_a_renewal_that_fails_leaves_the_certificate_in_use_and_is_logged_once(
    tmp_path: Path,
) -> None:
    clock = Clock()
    authority = Authority(tmp_path, clock)
    trusted = trust_anchors(authority.keys)
    with structlog.testing.capture_logs() as logged:
        async with serving(authority) as server:
            clock.now = datetime.max.replace(tzinfo=UTC)  # no certificate can be valid beyond it
            assert [await server.lets_in(trusted) for _ in range(3)] == [True, True, True]
    assert [line["event"] for line in logged] == ["server certificate kept"]


def damaged(path: Path, how: str) -> None:
    """Make the file of an authority what it must not be."""
    content = path.read_bytes()
    key = ec.generate_private_key(certificates.CURVE)
    other = ec.generate_private_key(ec.SECP384R1())
    end = content.index(b"-----BEGIN CERT")
    match how:
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"\0\xff" * 100)
        case "no certificate":
            path.write_bytes(content[:end])
        case "no key":
            path.write_bytes(content[end:])
        case "key of another":
            path.write_bytes(private_pem(key) + content[end:])
        case "key of another kind":
            path.write_bytes(private_pem(other) + content[end:])
        case "cut short":
            path.write_bytes(content[: content.rindex(b"-----BEGIN CERT") + 100])
        case "readable":
            path.chmod(0o644)
        case "directory":
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("empty", "is empty"),
        ("garbage", "is not text"),
        ("no certificate", "key and its certificates"),
        ("no key", "key and its certificates"),
        ("key of another", "does not belong to its certificate"),
        ("key of another kind", "not one of P-256"),
        ("cut short", "do not belong together"),
        ("readable", "open to other users"),
        ("directory", "is a directory"),
    ],
)
def test_a_file_that_is_no_good_is_named_and_left_alone(
    tmp_path: Path, how: str, problem: str
) -> None:
    Authority(tmp_path).rotate()
    path = tmp_path / module.FILE
    damaged(path, how)
    before = path.stat()
    with pytest.raises(errors.AuthorityUnusable, match=problem) as raised:
        Authority(tmp_path)
    assert str(path) in str(raised.value)
    assert raised.value.exit_code == 2
    assert raised.value.hint
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.AuthorityUnusable, match="cannot be written") as raised:
        Authority(tmp_path / "missing")
    assert "writable" in raised.value.hint


def test_a_full_disk_is_named_and_the_next_start_is_a_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(errors.AuthorityUnusable, match="No space left") as raised:
            Authority(tmp_path)
    assert raised.value.hint == "free some space there"
    assert list(tmp_path.iterdir()) == []
    assert Authority(tmp_path).keys
