"""The client of etcd with a real one: what it asks, how it gets in, what if none answers."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.errors import JournalFull, JournalOutage, JournalUnusable
from drumbeat.coordinator.journal.etcd.address import EtcdAddress, parse_etcd_address
from drumbeat.coordinator.journal.etcd.client import EtcdClient
from drumbeat.coordinator.journal.etcd.model import (
    Changed,
    Delete,
    Get,
    IsCreated,
    IsModified,
    Put,
    Transaction,
)
from drumbeat.coordinator.journal.keys import Keys
from tests.support.certificates import CertificateAuthority
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.processes import DEADLINE_S
from tests.support.proxy import Proxy
from tests.support.waiting import MS

pytestmark = needs_etcd


@asynccontextmanager
async def connected(address: EtcdAddress) -> AsyncIterator[EtcdClient]:
    from drumbeat.coordinator.journal.etcd.client import EtcdClient

    client = EtcdClient(address)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def address(etcd: EtcdCluster) -> EtcdAddress:
    return parse_etcd_address(etcd.url(etcd.new_prefix()))


def put(key: str, value: bytes = b"1", lease_id: int = 0) -> Transaction:
    return Transaction(conditions=(), then=(Put(key, value, lease_id),))


async def test_a_transaction_is_done_if_its_conditions_hold(address: EtcdAddress) -> None:
    keys = Keys(address.prefix)
    async with connected(address) as client:
        make = Transaction(
            conditions=(IsCreated(keys.head, 0), IsModified(keys.head, 0)),
            then=(Put(keys.head, b"one"), Put(keys.leader, b"me"), Get(keys.head)),
            otherwise=(Get(keys.head), Get(*keys.all)),
        )
        first, second = await client.commit(make), await client.commit(make)
        assert (first.is_done, second.is_done) == (True, False)
        ((seen,),) = first.reads
        assert (seen.key, seen.value) == (keys.head, b"one")
        assert seen.create_revision == seen.mod_revision == first.revision
        assert second.reads[0] == first.reads[0]
        assert [each.key for each in second.reads[1]] == [keys.head, keys.leader]
        gone = Transaction(
            conditions=(IsModified(keys.head, first.revision),), then=(Delete(*keys.all),)
        )
        assert (await client.commit(gone)).is_done
        assert (await client.read(*keys.all)).pairs == ()


@pytest.mark.parametrize("names_at_once", [20, 21, 1000])
async def test_a_large_range_is_read_in_pages_at_one_revision(
    address: EtcdAddress, monkeypatch: pytest.MonkeyPatch, names_at_once: int
) -> None:
    """Etcd counts no more than all keys a few times, however many pages there are."""
    from drumbeat.coordinator.journal.etcd.client import EtcdClient

    monkeypatch.setattr("drumbeat.coordinator.journal.etcd.client.PAGE_KEYS", 7)
    monkeypatch.setattr("drumbeat.coordinator.journal.etcd.client.PAGE_NAMES", names_at_once)
    counted = 0
    read_page = EtcdClient._read_page

    async def count(self: EtcdClient, request: Any) -> Any:
        nonlocal counted
        page = await read_page(self, request)
        counted += page.count
        return page

    monkeypatch.setattr(EtcdClient, "_read_page", count)
    keys = Keys(address.prefix)
    names = [f"{keys.runs[0]}{number:02}" for number in range(99)]
    async with connected(address) as client:
        outcome = await client.commit(
            Transaction(conditions=(), then=tuple(Put(name, name.encode()) for name in names))
        )
        reading = await client.read(*keys.runs)
    assert [each.key for each in reading.pairs] == names
    assert reading.revision == outcome.revision
    pages_of_names = -(-len(names) // names_at_once)
    assert counted <= len(names) * (2 + pages_of_names)
    if names_at_once > len(names):
        assert counted <= 3 * len(names)  # in pages of the whole range it was 7 times that


async def test_a_lease_takes_its_keys_with_it(address: EtcdAddress) -> None:
    keys = Keys(address.prefix)
    async with connected(address) as client:
        lease = await client.grant(2.5)
        assert lease.ttl_s >= 3.0
        await client.commit(put(keys.leader, lease_id=lease.lease_id))
        assert await client.keep_alive(lease.lease_id) == lease.ttl_s
        await client.revoke(lease.lease_id)
        await client.revoke(lease.lease_id)
        assert await client.keep_alive(lease.lease_id) == 0.0
        assert (await client.read(*keys.all)).pairs == ()
        with pytest.raises(JournalUnusable, match="lease not found"):
            await client.commit(put(keys.leader, lease_id=lease.lease_id))


async def test_a_watch_tells_what_changes(address: EtcdAddress) -> None:
    keys = Keys(address.prefix)
    async with connected(address) as client:
        first = await client.commit(put(keys.leader, b"1"))
        second = await client.commit(put(keys.leader, b"2"))
        watch = client.watch(*keys.all, after=first.revision)
        seen = await anext(watch)
        assert [pair.value for pair in seen.put] == [b"2"]
        assert seen.revision == second.revision
        third = await client.commit(
            Transaction(conditions=(), then=(Delete(keys.leader), Put(keys.head, b"3")))
        )
        assert await anext(watch) == Changed(
            revision=third.revision,
            put=(await client.read(*keys.all)).pairs,
            deleted=(keys.leader,),
        )
        await client.compact(third.revision)
        await client.compact(third.revision)
        await watch.aclose()
        with pytest.raises(JournalOutage, match="compacted"):
            await anext(client.watch(*keys.all, after=first.revision - 1))


async def test_what_etcd_never_does_is_no_outage(address: EtcdAddress) -> None:
    async with connected(address) as client:
        with pytest.raises(JournalUnusable, match="too large"):
            await client.commit(put(f"{address.prefix}/x", bytes(1_600_000)))


# Members that do not answer.


async def test_another_member_is_asked_after_one_has_died() -> None:
    with EtcdCluster(3) as cluster:
        route = cluster.route()
        async with connected(parse_etcd_address(route.url("x"))) as client:
            keys = Keys("x")
            await client.commit(put(keys.head))
            watch = client.watch(*keys.all, after=0)
            await anext(watch)
            # The member that is used vanishes without a word: one call is lost, and watches end.
            route.links[0].stall(up=True, down=True)
            with pytest.raises(JournalOutage, match="did not answer in time"):
                await client.commit(put(keys.leader))
            with pytest.raises(JournalOutage, match="given up"):
                await anext(watch)
            await until_done(client, put(keys.leader))
            # The next one refuses: nothing is lost but time, for nothing was sent.
            route.links[1].cut(refuse=True)
            with pytest.raises(JournalOutage):
                await client.commit(put(keys.leader))
            assert len((await client.read(*keys.all)).pairs) == 2
            for link in route.links:
                link.cut(refuse=True)
            with pytest.raises(JournalOutage) as refused:
                await client.commit(put(keys.leader))
            with pytest.raises(JournalOutage) as refused:
                await client.commit(put(keys.leader))
            assert all(link.address in str(refused.value) for link in route.links)
            assert "majority" in refused.value.hint
            for link in route.links:
                link.restore()
            await until_done(client, put(keys.leader))


async def test_a_slow_member_is_passed_over_and_a_fast_one_is_used_in_the_order_given(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, member = etcd.new_prefix(), etcd.members[0].address
    with Proxy(member) as first, Proxy(member) as second:
        given = parse_etcd_address(etcd.url(prefix, [first.address, second.address]))
        monkeypatch.setattr("drumbeat.coordinator.journal.etcd.client.SLOW_ANSWER_S", DEADLINE_S)
        async with connected(given) as client:
            await client.commit(put(f"{prefix}/head"))
            assert (first.accepted, second.accepted) == (1, 0)
        monkeypatch.setattr("drumbeat.coordinator.journal.etcd.client.SLOW_ANSWER_S", 50 * MS)
        monkeypatch.setattr("drumbeat.coordinator.journal.etcd.link.CONNECT_TIMEOUT_S", DEADLINE_S)
        first.stall(up=True, down=True)
        async with connected(given) as client:
            await client.commit(put(f"{prefix}/head"))
            assert (first.accepted, second.accepted) == (2, 1)


@pytest.mark.slow
async def test_a_member_that_has_lost_its_peers_is_left() -> None:
    with EtcdCluster(3, can_be_cut=True) as cluster:
        address = parse_etcd_address(cluster.url("x"))
        async with connected(address) as client:
            await client.commit(put("x/head"))
            cut_off = cluster.members[0]
            async with aclosing(client.watch(*Keys("x").all, after=0)) as watch:
                await anext(watch)
                cut_off.cut()
                # Without a request: the member itself says that it follows none any more.
                with pytest.raises(JournalOutage):
                    await anext(watch)
            # If it led the others, they have to elect another one first.
            async with asyncio.timeout(DEADLINE_S):
                await until_done(client, put("x/head"))
            with pytest.raises(JournalOutage):
                async with connected(replace(address, endpoints=address.endpoints[:1])) as lost:
                    await lost.commit(put("x/head"))


async def until_done(client: EtcdClient, transaction: Transaction) -> None:
    while True:
        try:
            await client.commit(transaction)
            break
        except JournalOutage:
            await asyncio.sleep(20 * MS)


async def fill(client: EtcdClient) -> None:
    # etcd weighs what it has written to its file, which it does in the background.
    async with asyncio.timeout(DEADLINE_S):
        for number in itertools.count():
            await client.commit(put(f"x/{number}", bytes(1_000_000)))


async def test_a_full_etcd_says_so() -> None:
    cluster = EtcdCluster()
    cluster.options += ["--quota-backend-bytes", str(4 * 1024 * 1024)]
    with cluster:
        async with connected(parse_etcd_address(cluster.url("x"))) as client:
            with pytest.raises(JournalFull, match="database space exceeded") as full:
                await fill(client)
            assert "etcdctl alarm disarm" in full.value.hint
            assert (await client.read(*Keys("x").all)).pairs


# The way in.


@pytest.fixture(scope="module")
def secure() -> Iterator[EtcdCluster]:
    with EtcdCluster(is_secure=True, asks_for_certificates=True) as cluster:
        yield cluster


async def test_certificates_let_in(secure: EtcdCluster, tmp_path: Path) -> None:
    by_name = [f"localhost:{address.rpartition(':')[2]}" for address in secure.addresses]
    for addresses in (secure.addresses, by_name):
        address = replace(
            parse_etcd_address(secure.url("x", addresses)),
            ca_file=secure.ca_file,
            cert_file=secure.certificate_file,
            key_file=secure.key_file,
        )
        async with connected(address) as client:
            await client.commit(put("x/head"))
    foreign = CertificateAuthority().write(tmp_path, "foreign")
    for wrong, why, hint in (
        (replace(address, ca_file=foreign), "CERTIFICATE_VERIFY_FAILED", "--journal-ca"),
        (replace(address, cert_file="", key_file=""), "CERTIFICATE", "--journal-cert"),
        (replace(address, ca_file="/not/there"), "/not/there does not exist", "relative"),
    ):
        async with connected(wrong) as client:
            with pytest.raises(JournalUnusable, match=why) as refused:
                await client.commit(put("x/head"))
            assert hint in refused.value.hint
    plain = replace(address, ca_file="", cert_file="", key_file="")
    async with connected(plain) as client:
        with pytest.raises(JournalOutage) as failed:
            await client.commit(put("x/head"))
        assert "give --journal-ca" in failed.value.hint, failed.value


async def test_one_who_encrypts_is_told_of_one_who_does_not(
    etcd: EtcdCluster, secure: EtcdCluster
) -> None:
    address = replace(parse_etcd_address(etcd.url("x")), ca_file=secure.ca_file)
    async with connected(address) as client:
        with pytest.raises(JournalOutage) as failed:
            await client.commit(put("x/head"))
        assert "leave --journal-ca out" in failed.value.hint


@pytest.mark.slow
async def test_a_password_lets_in_to_what_its_user_may_do(tmp_path: Path) -> None:
    with EtcdCluster() as guarded:
        guarded.protect("drum", "beat", "mine")
        address = replace(
            parse_etcd_address(guarded.url("mine")), password_file=guarded.password_file
        )
        async with connected(address) as client:
            await client.commit(put("mine/head"))
            link = client._link
            # Without its token the next call is one that needs another, on the same connection.
            assert link is not None
            link._token = (("token", "over"),)
            await client.commit(put("mine/head"))
            guarded.control("role", "add", "theirs")  # what was handed out is of an older revision
            await client.commit(put("mine/head"))
            assert client._link is link
            # Its restart ends what a member has handed out: a token is had anew.
            guarded.members[0].kill()
            guarded.members[0].restart()
            async with asyncio.timeout(DEADLINE_S):
                await until_done(client, put("mine/head"))
            async with aclosing(client.watch(*Keys("mine").all, after=0)) as watch:
                assert (await anext(watch)).put
        await refused_to_others(address, tmp_path)


async def refused_to_others(address: EtcdAddress, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.touch(mode=0o600)
    wrong.write_text("worse")
    for refused, why, hint in (
        (replace(address, password_file=str(wrong)), "authentication failed", "password-file"),
        (replace(address, user="", password_file=""), "user name is empty", "USER@"),
        (replace(address, prefix="theirs"), "permission denied", "grant-permission"),
    ):
        async with connected(refused) as client:
            with pytest.raises(JournalUnusable, match=why) as error:
                await client.commit(put(f"{refused.prefix}/head"))
            assert hint in error.value.hint
            assert "worse" not in str(error.value)


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['aetcd'] = None\n"
        "from drumbeat.coordinator.errors import JournalUnusable\n"
        "try: import drumbeat.coordinator.journal.etcd.client\n"
        "except JournalUnusable as error: print(error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "aetcd is not installed" in done.stdout
    assert "pip install 'drumbeat[etcd]'" in done.stdout


async def test_closing_ends_watches(address: EtcdAddress) -> None:
    async with connected(address) as client:
        outcome = await client.commit(put(f"{address.prefix}/x"))
        watch = client.watch(*Keys(address.prefix).all, after=outcome.revision - 1)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
    with pytest.raises(JournalOutage):
        await waiting


async def test_a_call_on_a_connection_that_was_closed_meanwhile_fails_as_one(
    address: EtcdAddress,
) -> None:
    async with connected(address) as client:
        await client.commit(put(f"{address.prefix}/x"))
        assert client._link is not None
        await client._link.close()
        with pytest.raises(JournalOutage, match="given up"):
            await client.commit(put(f"{address.prefix}/x"))
        await client.commit(put(f"{address.prefix}/x"))
