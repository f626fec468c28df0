"""``coordinator journal``: journals move between a state directory and etcd, and are checked."""

import asyncio
import json
import stat
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.access.authority import FILE, Authority
from drumbeat.coordinator.command.archiving import cluster
from drumbeat.coordinator.command.archiving.cluster import EtcdPlace
from drumbeat.coordinator.command.archiving.state_directory import StateDirectory
from drumbeat.coordinator.command.cli import main
from drumbeat.coordinator.errors import CallFailed, JournalFull, JournalUnusable
from drumbeat.coordinator.journal import batches
from drumbeat.coordinator.journal.archive import Archive, lines_of, read_archive
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.model import Delete, Put, Transaction
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import encode_head
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.etcd_model import EtcdClientModel, EtcdModel
from tests.support.stories import KINDS, NAMES, Story, lead, shown

KEYS = Keys("prod")


async def write_story(journal: Journal) -> Journal:
    """Write a story of all kinds; return the journal, and what is in it."""
    story = Story()
    for batch in range(12):
        numbers = [(batch * 5 + step * 3) % (KINDS * NAMES) for step in range(6)]
        await journal.write(story.batch(numbers), now=story.now)
    assert journal.runs.states
    assert journal.tokens.tokens
    assert journal.drains
    assert journal.quorums
    assert journal.forgets
    return journal


def new_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    Authority(directory)


async def a_state_directory(directory: Path) -> Journal:
    journal = SqliteJournal(directory)
    await journal.load()
    await write_story(journal)
    Authority(directory)
    await journal.close()
    return journal


async def read_again(etcd: EtcdClientModel) -> EtcdJournal:
    journal = EtcdJournal(etcd, KEYS, term=await lead(etcd, KEYS))
    await journal.load()
    await etcd.commit(Transaction((), (Delete(KEYS.leader),)))
    return journal


@pytest.fixture
def etcd_model() -> EtcdClientModel:
    return EtcdModel().client()


async def test_a_journal_moves_to_etcd_and_back_as_it_was(
    tmp_path: Path, etcd_model: EtcdClientModel
) -> None:
    written = await a_state_directory(tmp_path / "old")
    old, new = StateDirectory(tmp_path / "old"), StateDirectory(tmp_path / "new")
    there = EtcdPlace("etcd", etcd_model, KEYS)
    archive = await old.read()
    await there.write(read_archive(lines_of(archive)))
    assert shown(await read_again(etcd_model)) == shown(written)
    back = await there.read()
    assert back.authority == archive.authority == (tmp_path / "old" / FILE).read_text()
    await new.write(read_archive(lines_of(back)))
    again = await new.read()
    # Agents that saw one of them refuse coordinators of earlier terms.
    assert archive.term < back.term < again.term
    assert (again.runs, again.tokens) == (archive.runs, archive.tokens)
    assert (again.drains, again.forgets) == (archive.drains, archive.forgets)
    assert again.quorums == archive.quorums
    assert again.authority == archive.authority
    # The coordinator's clock has gone on, by no more than this took.
    assert archive.clock <= back.clock <= again.clock < archive.clock + 60
    (tmp_path / "new" / FILE).stat()
    assert stat.S_IMODE((tmp_path / "new" / FILE).stat().st_mode) == 0o600
    for found in (await there.check(), await new.check()):
        assert (found.runs, found.tokens, found.problems) == (
            len(archive.runs),
            len(archive.tokens),
            [],
        )
        assert found.has_authority
        assert found.size_bytes > 1000


async def test_a_place_that_is_used_or_not_empty_is_refused(
    tmp_path: Path, etcd_model: EtcdClientModel
) -> None:
    await a_state_directory(tmp_path / "old")
    old, there = StateDirectory(tmp_path / "old"), EtcdPlace("etcd", etcd_model, KEYS)
    archive = await old.read()
    with pytest.raises(CallFailed, match="no journal"):
        await there.read()
    with pytest.raises(CallFailed, match="no journal"):
        await StateDirectory(tmp_path / "none").read()
    assert not (tmp_path / "none").exists()
    await lead(etcd_model, KEYS, b'{"member_id":"m","address":"head1:29400"}')
    for refused in (there.read(), there.write(archive)):
        with pytest.raises(CallFailed, match="head1:29400 leads") as led:
            await refused
        assert led.value.exit_code == 2
    await etcd_model.commit(Transaction((), (Delete(KEYS.leader),)))
    await there.write(archive)
    for place in (there, old):
        with pytest.raises(CallFailed, match="is not empty"):
            await place.write(archive)
    new_directory(tmp_path / "other")
    with pytest.raises(CallFailed, match="authority of its own"):
        await StateDirectory(tmp_path / "other").write(archive)
    held = SqliteJournal(tmp_path / "old")
    try:
        with pytest.raises(CallFailed, match="a coordinator holds"):
            await old.read()
    finally:
        await held.close()


async def test_live_runs_do_not_move_to_where_terms_are_earlier(tmp_path: Path) -> None:
    await a_state_directory(tmp_path / "old")
    archive = await StateDirectory(tmp_path / "old").read()
    archive.term = 1000
    there = EtcdPlace("etcd", EtcdModel().client(), KEYS)
    with pytest.raises(CallFailed, match="a term of the journal was 1000"):
        await there.write(archive)
    archive.runs = [state for state in archive.runs if state.verdict is not None]
    await there.write(archive)


async def test_an_import_that_fails_leaves_nothing(
    tmp_path: Path, etcd_model: EtcdClientModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_state_directory(tmp_path / "old")
    archive = await StateDirectory(tmp_path / "old").read()
    there = EtcdPlace("etcd", etcd_model, KEYS)

    async def fails(*_args: object, **_more: object) -> None:
        raise JournalFull("etcd", "no space")

    with monkeypatch.context() as patch:
        patch.setattr(EtcdJournal, "restore", fails)
        with pytest.raises(JournalFull):
            await there.write(archive)
    await there.write(archive)


@pytest.mark.slow
async def test_an_import_that_is_slower_than_its_lease_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await a_state_directory(tmp_path / "old")
    archive = await StateDirectory(tmp_path / "old").read()
    monkeypatch.setattr(cluster, "LEASE_TTL_S", 1.0)
    monkeypatch.setattr(batches, "IMMEDIATE_MAX", 1)
    model = EtcdModel(ttl_min_s=1)
    etcd = model.client()
    etcd.delay_s = 0.25
    began = time.monotonic()
    await EtcdPlace("etcd", etcd, KEYS).write(archive)
    assert time.monotonic() - began > 2.0
    assert "keep_alive" in etcd.requests
    etcd.delay_s = 0.0
    assert shown(await read_again(etcd)) == shown(written)


async def test_what_an_import_left_that_was_killed_is_not_gone_on_from_but_replaced(
    tmp_path: Path, etcd_model: EtcdClientModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await a_state_directory(tmp_path / "old")
    archive = await StateDirectory(tmp_path / "old").read()
    there = EtcdPlace("etcd", etcd_model, KEYS)

    async def dies(*_args: object) -> None:
        await etcd_model.commit(Transaction((), (Delete(KEYS.leader),)))

    async def cut_short(self: EtcdJournal, *_args: object, **_more: object) -> None:
        await first(self, archive.changes()[:2], clock=1.0)
        assert self._head is not None
        head = replace(self._head, is_partial=True)
        value = encode_head(KEYS, head, release="0")
        await etcd_model.commit(Transaction((), (Put(KEYS.head, value),)))
        raise JournalFull("etcd", "no space")

    first = EtcdJournal.restore
    with monkeypatch.context() as patch:
        patch.setattr(EtcdJournal, "restore", cut_short)
        patch.setattr(EtcdPlace, "_clear", dies)
        with pytest.raises(JournalFull):
            await there.write(archive)
    assert (await etcd_model.read(*KEYS.runs)).pairs
    with pytest.raises(JournalUnusable, match="did not finish") as refused:
        await read_again(etcd_model)
    assert "coordinator journal import" in refused.value.hint
    await etcd_model.commit(Transaction((), (Delete(KEYS.leader),)))
    await there.write(archive)
    assert shown(await read_again(etcd_model)) == shown(written)


@pytest.mark.parametrize("cut", ["", "head", "middle", "end"])
def test_an_archive_that_is_not_whole_is_refused(cut: str) -> None:
    archive = asyncio.run(_archive_of_a_story())
    lines = list(lines_of(archive))
    broken = {"": [], "head": lines[1:], "middle": [*lines[:2], *lines[3:]], "end": lines[:-1]}
    assert read_archive(lines) == archive
    with pytest.raises(ValueError, match=r"line 1|before its end"):
        read_archive(broken[cut])


async def _archive_of_a_story() -> Archive:
    etcd = EtcdModel().client()
    journal = EtcdJournal(etcd, KEYS, term=await lead(etcd, KEYS))
    await journal.load()
    await write_story(journal)
    await etcd.commit(Transaction((), (Delete(KEYS.leader),)))
    return await EtcdPlace("etcd", etcd, KEYS).read()


async def test_check_names_all_that_is_broken(etcd_model: EtcdClientModel) -> None:
    journal = EtcdJournal(etcd_model, KEYS, term=await lead(etcd_model, KEYS))
    await journal.load()
    await write_story(journal)
    home = next(iter(journal._homes.values()))
    run = f"{KEYS.runs[0]}{home}/"
    await etcd_model.commit(
        Transaction(
            (),
            (
                Put(f"{run}0000000000.0000-0001", b'[["RoundEnded",{}]]'),
                Put(f"{KEYS.tokens[0]}x", b"{"),
                Put(KEYS.authority, b"no key"),
            ),
        )
    )
    found = await EtcdPlace("etcd", etcd_model, KEYS).check()
    where = [problem.where for problem in found.problems]
    assert f"{KEYS.tokens[0]}x" in where
    assert any(at.startswith(run) for at in where)
    assert KEYS.authority in where


@needs_etcd
def test_the_commands_move_a_journal(
    tmp_path: Path, etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(a_state_directory(tmp_path / "old"))
    file, url = tmp_path / "runs.jsonl", etcd.url(etcd.new_prefix())
    assert main(["journal", "export", str(file), "--state-dir", str(tmp_path / "old")]) == 0
    assert "it has the key of the authority" in capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["journal", "export", str(file), "--state-dir", str(tmp_path / "old")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["journal", "import", str(file), "--journal", url, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] > 0
    assert told["has_authority"] is True
    assert main(["journal", "check", "--journal", url, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["problems"], found["leader"]) == (told["runs"], [], "")
    assert main(["journal", "import", str(file), "--journal", url]) == 2
    assert "is not empty" in capsys.readouterr().err
    address = parse_etcd_address(url)
    etcd.control("put", f"{address.prefix}/tokens/x", "{")
    assert main(["journal", "check", "--journal", url]) == 1
    out, err = capsys.readouterr()
    assert f"{address.prefix}/tokens/x" in out
    assert "1 thing that cannot be read" in err
    assert main(["journal", "check", "--journal", "etcd://127.0.0.1:1/x"]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_an_argument_counts_before_the_variable_of_the_other_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRUMBEAT_JOURNAL", "etcd://127.0.0.1:1/x")
    asyncio.run(a_state_directory(tmp_path / "old"))
    assert main(["journal", "check", "--state-dir", str(tmp_path / "old")]) == 0
    assert str(tmp_path / "old") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("journal check", "either the address of etcd or --state-dir"),
        ("journal check --state-dir x --journal etcd://a", "either the address of etcd"),
        ("journal check --journal etcd://u@a", "--journal-password-file"),
        ("journal check --journal etcd://u:hush@a", "--journal-password-file"),
        ("journal check --journal http://a", "does not begin with etcd://"),
        ("journal export --state-dir x", "FILE"),
        ("journal import /not/there --state-dir {0}", "cannot be read"),
        ("journal check --state-dir {0}", "there is no journal in"),
    ],
)
def test_wrong_usage_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, problem: str
) -> None:
    assert main(line.format(tmp_path).split()) == 2
    told = capsys.readouterr().err
    assert problem in told
    assert "hush" not in told
