"""A member of etcd that accepts connections and says nothing, as one does without a majority."""

import asyncio
import socket
from contextlib import suppress

import pytest

from drumbeat.coordinator.journal.etcd.address import EtcdAddress
from drumbeat.coordinator.journal.etcd.link import EtcdConnection, EtcdError
from drumbeat.text.addresses import HostPort
from tests.support.waiting import MS

# gRPC's own limit is 20 s.
CLOSED_S = 8_000 * MS


@pytest.mark.slow
async def test_a_connection_to_a_silent_member_is_closed_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        endpoint = HostPort("127.0.0.1", listener.getsockname()[1])
        link = EtcdConnection(EtcdAddress(endpoints=(endpoint,), prefix="p"), endpoint)
        with pytest.raises(EtcdError, match=r"did not answer|timed out"):
            await link.open()
        await link.close()
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(listener)
        with connection:
            connection.setblocking(False)
            with suppress(ConnectionResetError):
                async with asyncio.timeout(CLOSED_S):
                    while await loop.sock_recv(connection, 1 << 16):
                        pass
