"""The journal on etcd: its clock, its limits, and what it does with what it did not write."""

import pytest

from drumbeat.coordinator.core.effects import Effect, Forget, KeepForgets, KeepToken, Persist
from drumbeat.coordinator.core.model import Verdict, VerdictCause
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    CallKind,
    CallNoted,
    GroupSucceeded,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.errors import (
    JournalCorrupt,
    JournalFull,
    JournalOutage,
    JournalUnusable,
    LostLeadership,
)
from drumbeat.coordinator.journal.batches import OPERATIONS_MAX, Compact, plan
from drumbeat.coordinator.journal.etcd import journal as journals
from drumbeat.coordinator.journal.etcd.address import parse_etcd_address
from drumbeat.coordinator.journal.etcd.journal import EtcdJournal
from drumbeat.coordinator.journal.etcd.model import Delete, Etcd, Put, Transaction
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.journal.keys import Keys
from drumbeat.coordinator.journal.layout import FORMAT, Home
from drumbeat.coordinator.journal.stored import Host
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.etcd_model import EtcdClientModel, EtcdModel, Fault
from tests.support.stories import a_large_run, lead, shown
from tests.support.world import a_spec, an_agent

KEYS = Keys("prod")
CREATED = Persist(run_id="r", record=RunCreated(run_id="r", spec=a_spec(1)))
ADMITTED = Persist(run_id="r", record=AgentAdmitted(agent=an_agent("a")))


class Clocks:
    """A host whose clocks the test moves."""

    def __init__(self, boot_id: str, *, monotonic: float, wall: float) -> None:
        self.monotonic, self.wall = monotonic, wall
        self.host = Host(boot_id, lambda: self.monotonic, lambda: self.wall)


@pytest.fixture
def client() -> EtcdClientModel:
    return EtcdModel(now=0.0).client()


async def opened(etcd: Etcd, keys: Keys = KEYS, host: Host | None = None) -> EtcdJournal:
    journal = EtcdJournal(etcd, keys, term=await lead(etcd, keys), host=host)
    await journal.load()
    return journal


async def change(etcd: Etcd, *operations: Put | Delete) -> None:
    assert (await etcd.commit(Transaction(conditions=(), then=operations))).is_done


async def test_a_usual_batch_is_one_round_trip(client: EtcdClientModel) -> None:
    journal = await opened(client)
    client.requests.clear()
    await journal.write([CREATED, ADMITTED, KeepForgets(calls=("a",))], now=1.0)
    await journal.write([ADMITTED], now=2.0)
    await journal.write([], now=3.0)
    assert client.requests == ["commit", "commit"]


async def test_a_run_that_has_ended_is_one_key_and_stays_one(client: EtcdClientModel) -> None:
    journal = await opened(client)
    await journal.write([CREATED], now=1.0)
    for number in range(50):
        await journal.write([noted(number)], now=2.0)
    assert len((await client.read(*KEYS.runs)).pairs) == 51
    verdict = Verdict(cause=VerdictCause.STOPPED, reason="", restart_count=0, round_id=None)
    await journal.write([Persist(run_id="r", record=RunEnded(verdict=verdict))], now=3.0)
    assert len((await client.read(*KEYS.runs)).pairs) == 1
    await journal.write([noted(50)], now=4.0)
    assert len((await client.read(*KEYS.runs)).pairs) == 1
    again = await opened(client)
    assert shown(again) == shown(journal)
    assert again.runs.states["r"].events_count == 52


def noted(number: int) -> Persist:
    kind = CallKind.ACCESS_REFUSED
    return Persist(run_id="r", record=CallNoted(kind=kind, reason=f"{number}", caller="c"))


# The clock.


async def test_the_clock_is_exact_within_one_boot_and_across_coordinators(
    client: EtcdClientModel,
) -> None:
    here = Clocks("boot", monotonic=50.0, wall=1000.0)
    journal = EtcdJournal(client, KEYS, term=await lead(client, KEYS), host=here.host)
    assert await journal.load() == 0.0
    await journal.write([CREATED], now=55.0)
    here.monotonic, here.wall = 60.0, 5.0  # the clock on the wall was set back meanwhile
    again = EtcdJournal(client, KEYS, term=await lead(client, KEYS), host=here.host)
    assert await again.load() == 0.0


@pytest.mark.parametrize(("wall", "passed_s"), [(1030.0, 30.0), (900.0, 0.0)])
async def test_another_host_goes_on_by_what_the_wall_clock_says_and_never_back(
    client: EtcdClientModel, wall: float, passed_s: float
) -> None:
    first = Clocks("one", monotonic=50.0, wall=1000.0)
    journal = await opened(client, host=first.host)
    await journal.write([CREATED], now=70.0)
    second = Clocks("two", monotonic=7.0, wall=wall)
    other = EtcdJournal(client, KEYS, term=await lead(client, KEYS), host=second.host)
    offset = await other.load()
    assert 7.0 + offset == 70.0 + passed_s
    await other.write([ADMITTED], now=8.0 + offset)
    back = EtcdJournal(client, KEYS, term=await lead(client, KEYS), host=first.host)
    assert 50.0 + await back.load() >= 8.0 + offset


# Who may write.


async def test_who_was_deposed_cannot_write_and_knows_it(client: EtcdClientModel) -> None:
    old = await opened(client)
    await old.write([CREATED], now=1.0)
    term = await lead(client, KEYS)
    with pytest.raises(LostLeadership):
        await old.write([ADMITTED], now=2.0)
    new = EtcdJournal(client, KEYS, term=term)
    await new.load()
    with pytest.raises(LostLeadership):
        await old.write([ADMITTED], now=2.0)
    assert new.runs.states["r"].members == {}
    with pytest.raises(LostLeadership):
        await EtcdJournal(client, KEYS, term=term - 1).load()


async def test_a_write_that_was_given_up_is_finished_before_the_next(
    client: EtcdClientModel,
) -> None:
    journal = await opened(client)
    client.fail(Fault.LATE, times=journals.TRIES)
    with pytest.raises(JournalOutage):
        await journal.write([CREATED], now=1.0)
    client.model.deliver_late()
    await journal.write([ADMITTED], now=2.0)
    assert list(journal.runs.states["r"].members) == ["a.1"]
    assert shown(await opened(client)) == shown(journal)


# Limits.


async def test_many_changes_at_once_are_several_batches(client: EtcdClientModel) -> None:
    journal, expected = await opened(client), Journal()
    runs = [f"r{number}" for number in range(3 * OPERATIONS_MAX)]
    created: list[Effect] = [
        Persist(run_id=run, record=RunCreated(run_id=run, spec=a_spec(1))) for run in runs
    ]
    tokens: list[Effect] = [KeepToken(token_id=run, token=None) for run in runs]
    for effects in (created, [*tokens, *(Forget(run_id=run) for run in runs[1:])]):
        await journal.write(effects, now=1.0)
        await expected.write(effects, now=1.0)
        assert shown(await opened(client)) == shown(expected)
        journal = await opened(client)


@pytest.mark.slow
@needs_etcd
async def test_a_run_of_ten_thousand_agents_fits(etcd: EtcdCluster) -> None:
    from drumbeat.coordinator.journal.etcd.client import EtcdClient

    prefix = etcd.new_prefix()
    client, keys = EtcdClient(parse_etcd_address(etcd.url(prefix))), Keys(prefix)
    try:
        journal = await opened(client, keys)
        await journal.write(a_large_run(10_000), now=1.0)
        expected = shown(journal)
        journal.runs.records_per_snapshot = 1
        more = Persist(run_id="large", record=GroupSucceeded(round_id=0, incarnation="x"))
        changes = journal.changes([more])
        assert isinstance(changes[0], Compact)
        homes = {"large": Home("x")}
        planned = plan(changes, number=9, keys=keys, homes=homes, release="0")
        parts = [put for parts in planned.transactions for put in parts if isinstance(put, Put)]
        assert len(planned.transactions) > 3
        assert shown(await opened(client, keys)) == expected
        journal = await opened(client, keys)
        journal.runs.records_per_snapshot = 1
        await journal.write([more], now=2.0)
        kept = (await client.read(*keys.runs)).pairs
        assert len(kept) == len(parts)
        assert shown(await opened(client, keys)) == shown(journal)
    finally:
        await client.close()


async def test_history_is_forgotten_up_to_the_time_before(
    client: EtcdClientModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "COMPACT_WRITES", 3)
    journal = await opened(client)
    await journal.write([CREATED], now=1.0)
    state = client.model.state
    at = []
    for _ in range(9):
        await journal.write([ADMITTED], now=2.0)
        at.append((state.revision, state.compacted))
    compacted = sorted({revision for _, revision in at})
    assert len(compacted) >= 3
    assert all(state.revision - 7 <= revision for revision in compacted[-1:])
    client.fail(Fault.REQUEST_LOST, "compact", times=9)
    for _ in range(5):
        await journal.write([ADMITTED], now=3.0)


# What etcd says, and what it holds.


async def test_a_full_etcd_is_told_at_once(client: EtcdClientModel) -> None:
    journal = await opened(client)

    async def full(_transaction: Transaction) -> None:
        client.requests.append("commit")
        raise JournalFull("etcd", "mvcc: database space exceeded")

    client.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "commit", full)
        with pytest.raises(JournalFull):
            await journal.write([CREATED], now=1.0)
    assert client.requests == ["commit"]
    await journal.write([CREATED], now=1.0)
    assert shown(await opened(client)) == shown(journal)


BROKEN: dict[str, tuple[str, bytes]] = {
    "a record without a seal": ("runs/{home}/0000000001.0000-0001", b"[]"),
    "a missing part": ("runs/{home}/0000000001.0001-0003", b"["),
    "a missing beginning": ("runs/00000000010000ff-x/0000000001.0000-0001", b"[]"),
    "a strange name": ("runs/x", b"[]"),
    "a token that is none": ("tokens/t", b"{}"),
    "a drain that is none": ("drains/t", b"[]"),
    "forgets that are none": ("forgets", b"{}"),
    "an unknown key": ("other", b"{}"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_cannot_be_read_is_named_and_the_rest_is_served(
    client: EtcdClientModel, name: str
) -> None:
    journal = await opened(client)
    await journal.write([CREATED], now=1.0)
    other = Persist(run_id="other", record=RunCreated(run_id="other", spec=a_spec(1)))
    await journal.write([other], now=1.0)
    key, value = BROKEN[name]
    at = f"{KEYS.prefix}{key.format(home=journal._homes['r'].name)}"
    await change(client, Put(at, value))
    again = await opened(client)
    assert "other" in again.runs.states
    assert at.rpartition("/")[0] in again.problems[0].key
    assert all(problem.reason and problem.lost for problem in again.problems)
    is_of_the_run = "{home}" in key
    assert ("r" in again.set_aside) is is_of_the_run
    assert ("r" in again.runs.states) is not is_of_the_run
    await again.write([Forget(run_id="r")], now=2.0)  # also if it is set aside
    assert "r" not in again.set_aside
    assert not [pair for pair in (await client.read(*KEYS.runs)).pairs if "-r/" in pair.key]


@pytest.mark.parametrize("value", [b"{}", b""])
async def test_without_its_head_nothing_is_done_about_runs(
    client: EtcdClientModel, value: bytes
) -> None:
    journal = await opened(client)
    await journal.write([CREATED], now=1.0)
    before = (await client.read(*KEYS.runs)).pairs
    await change(client, Put(KEYS.head, value) if value else Delete(KEYS.head))
    with pytest.raises(JournalCorrupt, match="prod/head") as refused:
        await opened(client)
    assert "coordinator journal export" in refused.value.hint
    assert (await client.read(*KEYS.runs)).pairs == before


async def test_a_journal_of_a_newer_release_is_refused(client: EtcdClientModel) -> None:
    await opened(client)
    (head,) = (await client.read(KEYS.head, "")).pairs
    newer = head.value.replace(b"[%d," % FORMAT, b"[%d," % (FORMAT + 1))
    await change(client, Put(KEYS.head, newer))
    with pytest.raises(JournalUnusable, match="written by a newer release") as refused:
        await opened(client)
    assert "upgrade" in refused.value.hint
