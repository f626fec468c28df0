"""What torch asks of a rendezvous backend: handlers in threads, with a real coordinator."""

import importlib
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import structlog

from tests.support.cluster import Cluster
from tests.support.waiting import MS, wait_until_sync

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("shared_coordinator"),
    # torch's client of the store warns of the reverse look-up of an address.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WAIT_S = 30_000 * MS

grpc.aio.init_grpc_aio()  # one for all loops of this process; made here, it is no leak of a test


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    structlog.configure()
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def torchs() -> Any:
    """Torch's package, loaded here: it takes seconds, and most who collect do not run these."""
    return pytest.importorskip("torch.distributed.elastic.rendezvous")


@pytest.fixture
def make(cluster: Cluster, torchs: Any) -> Iterator[Callable[..., Any]]:
    """Return what makes handlers as torch does, by the name of the backend."""
    made: list[Any] = []

    def handler(nodes: tuple[int, int] = (2, 2), endpoint: str = "", **conf: Any) -> Any:
        conf = {"timeout": 900, "last_call_timeout": 0.5, "close_timeout": 3, **conf}
        where = endpoint or cluster.coordinator().address
        made.append(
            torchs.registry.get_rendezvous_handler(
                torchs.RendezvousParameters("drumbeat", where, cluster.run_id, *nodes, **conf)
            )
        )
        return made[-1]

    yield handler
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: each.shutdown(), made))


def meet(*handlers: Any) -> list[Any]:
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(handler.next_rendezvous) for handler in handlers]
        return sorted((wait.result(WAIT_S) for wait in waits), key=lambda info: info.rank)


def until_waiting(handler: Any) -> None:
    wait_until_sync(lambda: handler.num_nodes_waiting() == 1, WAIT_S)


def end_with(handler: Any, error: Exception) -> bool:
    """Shut down as torch does while an exception ends torchrun."""
    try:
        raise error
    except type(error):
        return bool(handler.shutdown())


def test_hosts_meet_and_share_the_store_of_their_round(
    make: Callable[..., Any], cluster: Cluster
) -> None:
    one, other = make(), make()
    assert one.get_backend() == "drumbeat"
    assert one.get_run_id() == cluster.run_id
    assert one.use_agent_store
    first, second = meet(one, other)
    assert (first.rank, second.rank, first.world_size, second.world_size) == (0, 1, 2, 2)
    assert first.bootstrap_store_info == second.bootstrap_store_info
    first.store.set("key", "of this round")
    assert second.store.get("key") == b"of this round"
    assert (one.num_nodes_waiting(), one.is_closed()) == (0, False)


def test_a_restart_of_one_makes_the_others_wait_for_a_round_with_an_empty_store(
    make: Callable[..., Any],
) -> None:
    one, other = make(), make()
    meet(one, other)[0].store.set("key", "old")
    with ThreadPoolExecutor() as pool:
        again = pool.submit(one.next_rendezvous)
        until_waiting(other)
        info = other.next_rendezvous()
        assert again.result(WAIT_S).bootstrap_store_info == info.bootstrap_store_info
    assert not info.store.check(["key"])
    assert other.num_nodes_waiting() == 0


def test_a_late_host_is_taken_in(make: Callable[..., Any]) -> None:
    one = make((1, 2))
    assert meet(one)[0].world_size == 1
    late = make((1, 2))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(late.next_rendezvous)
        until_waiting(one)
        assert one.next_rendezvous().world_size == waiting.result(WAIT_S).world_size == 2


def test_success_of_all_closes_it_for_all(make: Callable[..., Any], torchs: Any) -> None:
    handlers = [make(), make()]
    meet(*handlers)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda handler: handler.shutdown(), handlers)) == [True, True]
    assert all(handler.is_closed() for handler in handlers)
    with pytest.raises(torchs.RendezvousClosedError):
        handlers[0].next_rendezvous()


def test_a_failure_for_good_ends_all_with_its_message(
    make: Callable[..., Any], torchs: Any, cluster: Cluster
) -> None:
    one, other = make(), make()
    meet(one, other)
    errors = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    failure = errors.ProcessFailure(local_rank=0, pid=77, exitcode=-11, error_file="none")
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end_with, one, errors.ChildFailedError("train.py", {0: failure}))
        until_waiting(other)
        with pytest.raises(torchs.RendezvousClosedError, match="SIGSEGV"):
            other.next_rendezvous()
        assert ended.result(WAIT_S)
    assert other.is_closed()
    assert "SIGSEGV" in cluster.coordinator().run(cluster.run_id).reason


@pytest.mark.slow
def test_a_failure_for_good_ends_all_who_restart_for_another_one(
    make: Callable[..., Any], torchs: Any
) -> None:
    # One that waits in torch's store looks up every two seconds.
    one, other = (make(close_timeout=WAIT_S) for _ in range(2))
    meet(one, other)
    with ThreadPoolExecutor() as pool:
        restarts = pool.submit(one.next_rendezvous)
        until_waiting(other)
        assert end_with(other, RuntimeError("no restart left"))
        with pytest.raises(torchs.RendezvousClosedError, match="no restart left"):
            restarts.result(WAIT_S)


def test_a_host_that_is_done_leaves_those_who_restart(make: Callable[..., Any]) -> None:
    one, other = (make((1, 2), last_call_timeout=20, close_timeout=0.5) for _ in range(2))
    meet(one, other)
    with ThreadPoolExecutor() as pool:
        restarts = pool.submit(one.next_rendezvous)
        until_waiting(other)
        other.shutdown()
        assert restarts.result(WAIT_S).world_size == 1


@pytest.mark.parametrize("is_in_a_round", [True, False])
def test_set_closed_closes_it(
    make: Callable[..., Any], torchs: Any, *, is_in_a_round: bool
) -> None:
    one, other = make(), make()
    if is_in_a_round:
        meet(one, other)
    one.set_closed()
    one.set_closed()
    assert one.is_closed()
    with pytest.raises(torchs.RendezvousClosedError):
        one.next_rendezvous()
    if is_in_a_round:
        until_waiting(other)
        with pytest.raises(torchs.RendezvousClosedError):
            other.next_rendezvous()


@pytest.mark.slow
def test_too_few_hosts_are_a_timeout(make: Callable[..., Any], torchs: Any) -> None:
    with pytest.raises(torchs.RendezvousTimeoutError, match="1 of 2 agents"):
        make(join_timeout=5.0).next_rendezvous()


def test_no_coordinator_is_a_connection_error(make: Callable[..., Any], torchs: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        where = f"127.0.0.1:{place.getsockname()[1]}"
    with pytest.raises(torchs.RendezvousConnectionError, match="no coordinator answered"):
        make(endpoint=where, join_timeout=0.5).next_rendezvous()


def test_settings_that_are_not_allowed_are_errors_that_name_them(
    make: Callable[..., Any],
) -> None:
    with pytest.raises(ValueError, match="is_host is not known, allowed"):
        make(is_host="1")
    with pytest.raises(ValueError, match="coordinator: "):
        make(endpoint="no address at all").next_rendezvous()


def test_a_handler_that_never_met_anyone_shuts_down(make: Callable[..., Any]) -> None:
    assert make().shutdown()
