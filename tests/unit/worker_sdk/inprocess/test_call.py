"""The iterations of one call: what restarts, what ends, and what a hook is given."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

import pytest

from drumbeat.worker.v1 import iteration_pb2, worker_pb2
from tests.support.calls import Noted, kind_of
from tests.support.inprocess.peers import Iterations
from tests.unit.worker_sdk.inprocess.conftest import World
from worker_sdk import inprocess
from worker_sdk.inprocess import CallWrapper, State, Wrapper


def test_a_function_that_returns_is_called_once(make_world: Callable[..., World]) -> None:
    world = make_world(3, 1)

    @Wrapper()
    def train(x: int, *, y: int, call: CallWrapper | None = None) -> tuple[int, int, int]:
        assert call is not None
        return x + y, call.iteration, int(os.environ["RANK"])

    assert train(1, y=2) == (3, 0, 1)
    assert world.model.kinds(1) == [(0, "entered"), (0, "completed")]
    assert os.environ["WORLD_SIZE"] == "3"
    assert world.limits.armed == {}


def test_iterations_go_on_over_calls_and_start_anew_for_the_user(
    make_world: Callable[..., World],
) -> None:
    world = make_world()

    @Wrapper()
    def train(call: CallWrapper) -> int:
        if call.iteration == 0 and len(world.model.begins) == 1:
            raise ValueError("once")
        return call.iteration

    assert train() == 1
    assert train() == 0
    assert [begin.iteration for begin in world.model.begins] == [0, 1, 2]


def test_an_exception_restarts_through_all_hooks_in_order(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    noted = Noted()

    @Wrapper(**noted.hooks)
    def train(call: CallWrapper) -> int:
        noted.log.append(("fn", call.iteration, None))
        if call.iteration == 0:
            raise ValueError("this is why")
        return 7

    assert train() == 7
    assert noted.log == [
        ("initialize", 0, None),
        ("health", 0, None),
        ("fn", 0, None),
        ("abort", 0, None),
        ("finalize", 0, "ValueError"),
        ("health", 0, "ValueError"),
        ("initialize", 1, None),
        ("health", 1, None),
        ("fn", 1, None),
    ]
    said = world.model.said[1][1].interrupted.interruption
    assert "this is why" in said.message
    assert "ValueError: this is why" in said.traceback


@pytest.mark.parametrize("failing", ["initialize", "health_check"])
def test_an_exception_before_the_function_restarts(
    make_world: Callable[..., World], failing: str
) -> None:
    make_world()
    calls: list[int] = []

    class Fail:
        def __call__(self, state: State) -> None:
            calls.append(state.iteration)
            if len(calls) == 1:
                raise RuntimeError("not yet")

    kind = {"initialize": inprocess.Initialize, "health_check": inprocess.HealthCheck}[failing]
    hook = type("Hook", (Fail, kind), {})()

    @Wrapper(**{failing: hook})
    def train(call: CallWrapper) -> int:
        return call.iteration

    assert train() == 1


@pytest.mark.parametrize("failing", ["finalize", "health_check"])
def test_a_hook_that_fails_after_an_interruption_ends_the_worker(
    make_world: Callable[..., World], failing: str
) -> None:
    world = make_world()

    class Fail:
        def __call__(self, _: State, error: BaseException | None) -> None:
            if error is not None:
                raise RuntimeError("cannot go on")

    kind = {"finalize": inprocess.Finalize, "health_check": inprocess.HealthCheck}[failing]

    @Wrapper(**{failing: type("Hook", (Fail, kind), {})()})
    def train() -> None:
        raise ValueError("the first cause")

    with pytest.raises(inprocess.HealthCheckError) as caught:
        train()
    cause = caught.value.__cause__
    assert isinstance(cause, RuntimeError)
    assert isinstance(cause.__cause__, ValueError)
    assert world.model.kinds(0)[-1] == (0, "terminated")
    ended = world.model.said[-1][1].terminated.interruption
    assert ended.kind == kind_of("UNHEALTHY")
    with pytest.raises(inprocess.RestartError, match="ended its part"):
        train()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), inprocess.RestartAbort("enough")]
)
def test_other_exceptions_end_the_worker_and_pass(
    make_world: Callable[..., World], error: BaseException
) -> None:
    world = make_world()

    @Wrapper()
    def train() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        train()
    assert caught.value is error
    ended = world.model.said[-1][1].terminated.interruption
    assert ended.kind == kind_of("BASE_EXCEPTION")
    assert type(error).__name__ in ended.message


def test_spares_wait_and_return_none(make_world: Callable[..., World]) -> None:
    world = make_world(3, 2)
    calls: list[int] = []

    @Wrapper(rank_filter=inprocess.MaxActiveWorldSize(2))
    def train() -> int:
        calls.append(1)
        return 5

    assert train() is None
    assert calls == []
    assert world.model.begins[0].active_world_size == 2


def test_a_spare_takes_the_place_of_a_lost_worker(make_world: Callable[..., World]) -> None:
    world = make_world(3, 2)
    world.model.workers[1].send = lambda _: None
    world.model.workers[1].step, world.model.workers[1].iteration = "entered", 0

    def second() -> None:
        world.model.wait_for(lambda: world.model.kinds(2)[-1:] == [(0, "completed")])
        world.model.lose(1)

    threading.Thread(target=second).start()

    @Wrapper(rank_assignment=inprocess.FillGaps(), rank_filter=inprocess.MaxActiveWorldSize(2))
    def train(call: CallWrapper) -> tuple[State, str, str]:
        return call.state, os.environ["RANK"], os.environ["WORLD_SIZE"]

    result = train()
    assert result is not None
    state, rank, size = result
    assert (state.rank, state.active_rank, state.initial_rank) == (1, 1, 2)
    assert (state.world_size, state.initial_world_size, state.mode) == (
        2, 3, inprocess.Mode.ACTIVE,
    )  # fmt: skip
    assert (rank, size) == ("1", "2")


def test_a_filter_of_the_users_own_is_evaluated_here(make_world: Callable[..., World]) -> None:
    import dataclasses

    make_world(2, 1)

    class OnlyFirst(inprocess.RankFilter):
        def __call__(self, state: State) -> State:
            if state.rank == 0:
                return state
            return dataclasses.replace(
                state, mode=inprocess.Mode.INACTIVE, active_rank=None, active_world_size=1
            )

    @Wrapper(rank_filter=OnlyFirst())
    def train() -> int:
        return 1

    assert train() is None


def test_without_an_agent_the_function_is_called_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from worker_sdk.inprocess.restart.call_wrapper import Current

    monkeypatch.setattr(Current, "link", None)
    noted = Noted()

    @Wrapper(**noted.hooks)
    def train(value: int, call: Optional[CallWrapper] = None) -> int:  # noqa: UP045
        assert call is not None
        call.ping()
        with call.atomic():
            return value + call.iteration

    with caplog.at_level("INFO", logger="worker_sdk"):
        assert train(4) == 4
    assert [entry[0] for entry in noted.log] == ["initialize", "health"]
    assert sum("without restarts" in record.message for record in caplog.records) == 1

    @Wrapper()
    def fail() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        fail()


def test_a_wrapper_within_another_is_a_part_of_it(make_world: Callable[..., World]) -> None:
    world = make_world()

    @Wrapper()
    def inner(call: CallWrapper) -> int:
        if call.iteration == 0:
            raise ValueError("inside")
        return call.iteration

    @Wrapper()
    def outer() -> int | None:
        return inner()

    assert outer() == 1
    assert len(world.model.begins) == 2


def test_only_the_main_thread_may_call(make_world: Callable[..., World]) -> None:
    make_world()
    raised: list[BaseException] = []

    @Wrapper()
    def train() -> None: ...

    def run() -> None:
        try:
            train()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_when_the_agent_takes_no_more_part_waiting_ends(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    world.model.workers[1].send = lambda _: None
    world.model.workers[1].step, world.model.workers[1].iteration = "entered", 0

    def second() -> None:
        world.model.wait_for(lambda: world.model.kinds(0)[-1:] == [(0, "completed")])
        world.transport.lose()

    threading.Thread(target=second).start()

    @Wrapper()
    def train() -> int:
        return 1

    with pytest.raises(inprocess.RestartError, match="no more part"):
        train()


def test_a_signal_that_another_thread_takes_ends_the_wait_for_the_others(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    world.model.workers[1].send = lambda _: None
    world.model.workers[1].step, world.model.workers[1].iteration = "entered", 0

    class Heard(BaseException):
        pass

    def hear(*_: object) -> None:
        raise Heard

    def second() -> None:
        world.model.wait_for(lambda: world.model.kinds(0)[-1:] == [(0, "completed")])
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, hear)
    thread = threading.Thread(target=second)
    thread.start()
    try:
        with pytest.raises(Heard):
            Wrapper()(lambda: 1)()
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # one that is late must end nothing
        thread.join()
        signal.signal(signal.SIGUSR1, before)


# Ends.


@pytest.mark.parametrize(("code", "kind"), [(0, "EXITED"), (None, "EXITED"), (3, "BASE_EXCEPTION")])
def test_an_exit_says_whether_it_is_a_failure(
    make_world: Callable[..., World], code: int | None, kind: str
) -> None:
    world = make_world()

    @Wrapper()
    def train() -> None:
        sys.exit(code)

    with pytest.raises(SystemExit):
        train()
    said = world.model.said[-1][1].terminated.interruption
    assert said.kind == iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{kind}")


def test_the_caller_is_told_that_no_iteration_follows(make_world: Callable[..., World]) -> None:
    """Also if that was said while this worker still cleaned up."""
    world = make_world(2, 0)
    abort = worker_pb2.WorkerAbort(reason="all 3 iterations are used")

    class Abort(inprocess.Finalize):
        def __call__(self, state: State) -> None:
            order = worker_pb2.WorkerOrder(iteration=state.iteration, abort=abort)
            world.transport.deliver(order)

    @Wrapper(finalize=Abort())
    def train() -> None:
        raise ValueError("again")

    with pytest.raises(inprocess.RestartAbort, match="all 3 iterations are used"):
        train()
    assert world.model.kinds(0)[-1] == (1, "terminated")


def test_ranks_within_a_role_are_those_of_the_iteration(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent does not tell stays as it was."""
    make_world()
    monkeypatch.setenv("ROLE_RANK", "5")
    begin_of = Iterations._begin_of

    def with_role(*args: Any) -> worker_pb2.WorkerOrder:
        order = begin_of(*args)
        if order.iteration:
            order.begin.role_rank, order.begin.role_world_size = 1, 2
        return order

    monkeypatch.setattr(Iterations, "_begin_of", with_role)

    @Wrapper()
    def train() -> tuple[str, str]:
        return os.environ["ROLE_RANK"], os.environ["RANK"]

    assert train() == ("5", "0")
    assert train() == ("1", "0")
    assert os.environ["ROLE_WORLD_SIZE"] == "2"


def test_a_program_goes_on_where_another_of_its_worker_ended(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.transport.greeted = worker_pb2.Greeted(next_iteration=4)
    world.model.iteration = 4

    @Wrapper()
    def train(call: CallWrapper) -> int:
        return call.iteration

    assert (train(), train()) == (0, 0)
    assert [begin.iteration for begin in world.model.begins] == [4, 5]


@pytest.mark.parametrize("greeted", [None, worker_pb2.Greeted(left="it left: boom")])
def test_a_program_that_can_not_take_part_is_told_so(
    make_world: Callable[..., World], greeted: worker_pb2.Greeted | None
) -> None:
    world = make_world()
    world.transport.greeted = greeted
    train = Wrapper()(lambda: None)
    with pytest.raises(inprocess.RestartError, match=r"did not answer|any more: it left: boom"):
        train()
    assert world.model.said == []


def test_a_traceback_begins_where_the_users_code_does(make_world: Callable[..., World]) -> None:
    world = make_world()

    @Wrapper()
    def train(call: CallWrapper) -> None:
        if call.iteration == 0:
            raise ValueError("boom")

    train()
    said = world.model.said[1][1].interrupted.interruption
    assert said.traceback.count("  File ") == 1
    assert f'File "{__file__}"' in said.traceback


def test_an_end_that_is_told_while_the_function_is_left_is_not_forgotten(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2, 0)
    abort = worker_pb2.WorkerAbort(reason="too few")

    @Wrapper()
    def train() -> None:
        world.model.lose(1, "rank 1 is lost")
        try:
            while True:
                time.sleep(0.001)
        finally:
            world.transport.deliver(worker_pb2.WorkerOrder(abort=abort))

    with pytest.raises(inprocess.RestartAbort, match="too few"):
        train()
