"""What proves to a coordinator whose failure records these are: kept with them, and sent."""

import asyncio
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import msgspec

from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.session.convert import Identity, hello_message, incarnation_of
from drumbeat.agent.session.spool import Spool, Spooled
from drumbeat.agent.session.transport import Connection, Failures, TakeReceipt, TransportError
from drumbeat.coordinator.core.tokens import caller
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from tests.support.agents import CONFIG
from tests.support.fake_coordinator import DEADLINE_S

KEY, KEY_OF_DEAD = b"k" * 32, b"d" * 32


def a_spool(directory: PrivateDirectory, key: bytes) -> Spool:
    identity = Identity(incarnation=incarnation_of(key), incarnation_key=key, host="alice")
    return Spool(directory, CONFIG, identity)


def spooled(key: bytes, sequence: int = 1) -> Spooled:
    fence = common_pb2.Fence(run_id="r", round_id=0, incarnation=incarnation_of(key))
    record = failure_pb2.FailureRecord(fence=fence, sequence=sequence, host="alice")
    return Spooled(time.monotonic(), record, key)


def files(place: Path) -> list[Path]:
    return list(place.rglob("*.record"))


def leave_behind(place: Path) -> None:
    """Write a record as an agent does that ends before it is delivered."""
    with closing(PrivateDirectory([str(place)])) as directory:
        assert a_spool(directory, KEY_OF_DEAD).write(spooled(KEY_OF_DEAD))


class Door:
    """A connection to a coordinator that takes so many, which have the right key, and no other."""

    def __init__(self, count: int) -> None:
        self.count, self.is_done = count, asyncio.Event()
        self.taken: list[str] = []
        self.refused: list[str] = []

    async def report(self, requests: Failures, take: TakeReceipt) -> None:
        """Look at all that is said."""
        async for request in requests:
            fence, sequence = request.record.fence, request.record.sequence
            if caller.incarnation_of(request.incarnation_key) != fence.incarnation:
                self.refused.append(fence.incarnation)
                raise TransportError("it does not prove that it speaks for this agent", "FORBIDDEN")
            self.taken.append(fence.incarnation)
            take(
                session_pb2.ReportFailuresResponse(incarnation=fence.incarnation, sequence=sequence)
            )
            if len(self.taken) == self.count:
                self.is_done.set()


async def deliver(spool: Spool, count: int) -> Door:
    """Deliver until so many were taken."""
    door = Door(count)
    delivery = asyncio.create_task(spool.deliver(cast("Connection", door)))
    async with asyncio.timeout(DEADLINE_S):
        await door.is_done.wait()
    delivery.cancel()
    with suppress(asyncio.CancelledError):
        await delivery
    return door


def test_an_agent_proves_its_incarnation_as_the_coordinator_asks_for_it() -> None:
    assert incarnation_of(KEY) == caller.incarnation_of(KEY)
    identity = Identity(incarnation=incarnation_of(KEY), incarnation_key=KEY, host="h")
    assert hello_message(CONFIG, identity, session_pb2.Beat()).incarnation_key == KEY
    assert "kkkk" not in repr(identity)


async def test_own_and_adopted_records_are_sent_with_the_key_of_each(place: Path) -> None:
    leave_behind(place)
    with closing(PrivateDirectory([str(place)])) as directory:
        spool = a_spool(directory, KEY)
        spool.write(spooled(KEY))
        spool.adopt()
        door = await deliver(spool, count=2)
        spool.close()
    assert set(door.taken) == {incarnation_of(KEY), incarnation_of(KEY_OF_DEAD)}
    assert door.refused == []


def test_a_record_with_its_key_is_for_its_owner_alone(place: Path) -> None:
    leave_behind(place)
    (path,) = files(place)
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY_OF_DEAD in path.read_bytes()


async def test_a_record_of_an_earlier_version_is_dropped_where_its_key_is_asked_for(
    place: Path,
) -> None:
    """The one behind it arrives."""
    leave_behind(place)
    (path,) = files(place)
    entry = msgspec.msgpack.decode(path.read_bytes())
    del entry["incarnation_key"]
    path.write_bytes(msgspec.msgpack.encode(entry))
    with closing(PrivateDirectory([str(place)])) as directory:
        spool = a_spool(directory, KEY)
        (adopted,) = spool.adopt()
        assert adopted.incarnation_key == b""
        spool.write(spooled(KEY))
        door = await deliver(spool, count=1)
        assert files(place) == [], "it would be refused for ever"
        spool.close()
    assert door.refused == [incarnation_of(KEY_OF_DEAD)]
