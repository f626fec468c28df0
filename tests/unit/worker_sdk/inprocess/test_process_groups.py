"""A rank that waits in ``init_process_group`` for a store that is not there."""

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.waiting import MS
from tests.unit.worker_sdk.inprocess.conftest import World
from worker_sdk.inprocess import CallWrapper, Wrapper, process_groups


# An interruption in `create_connection` leaves its socket to be closed with its frame.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_rank_whose_rank_0_never_comes_restarts(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 failed before it made the store."""
    dist = pytest.importorskip("torch.distributed")
    world = make_world(2, 1)
    looks_for_it = threading.Event()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        world.model.master_port = lambda: port
        connect = socket.create_connection

        def note(*args: object) -> socket.socket:
            looks_for_it.set()
            return connect(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(socket, "create_connection", note)

        def fail() -> None:
            looks_for_it.wait()
            world.model.lose(0, "rank 0 failed")

        failing = threading.Thread(target=fail)
        failing.start()

        @Wrapper()
        def train(call: CallWrapper) -> int:
            if call.iteration == 0:
                dist.init_process_group("gloo")
            return call.iteration

        assert train() == 1
        failing.join()


@pytest.mark.slow
def test_others_than_rank_0_wait_until_the_store_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in torch's place meanwhile is put back."""
    rendezvous = pytest.importorskip("torch.distributed.rendezvous")
    made: list[int] = []

    def create(*arguments: Any) -> None:
        made.append(arguments[2])

    monkeypatch.setattr(rendezvous, "_create_c10d_store", create)
    with socket.socket() as store, process_groups.store_awaited_in_python():
        store.bind(("127.0.0.1", 0))
        place = store.getsockname()
        rendezvous._create_c10d_store(*place, 0, 2, timedelta(seconds=60))
        began = time.monotonic()
        rendezvous._create_c10d_store(*place, 1, 2, timedelta(seconds=20 * MS))
        assert time.monotonic() - began >= 20 * MS, "then torch says what is wrong"
        store.listen()
        rendezvous._create_c10d_store(*place, 2, 2, timedelta(seconds=60))
    assert made == [0, 1, 2]
    assert rendezvous._create_c10d_store is create
