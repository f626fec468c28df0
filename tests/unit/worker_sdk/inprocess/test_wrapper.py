"""What a wrapper may be given, and which parameters get the call."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Optional

import pytest

from drumbeat.worker.v1 import iteration_pb2
from worker_sdk import context, inprocess
from worker_sdk.inprocess import CallWrapper, Compose, State, Wrapper, ranks
from worker_sdk.inprocess.arguments import with_instance
from worker_sdk.inprocess.restart import call
from worker_sdk.inprocess.restart.call_wrapper import Current


def spec_of(wrapper: Wrapper, world_size: int = 8) -> iteration_pb2.InprocessSpec:
    return call.spec(wrapper._plan, world_size)


def test_defaults_are_those_that_users_know() -> None:
    spec = spec_of(Wrapper())
    assert [rule.WhichOneof("kind") for rule in spec.rules] == ["shift"]
    assert (spec.world_size_min, spec.active_world_size_min, spec.iterations_max) == (1, 1, 0)
    assert spec.barrier_timeout.seconds == 120
    assert spec.completion_timeout.seconds == 120
    assert spec.last_call_wait.seconds == 1
    timing = Wrapper()._plan.timing
    kept = ("soft_timeout", "hard_timeout", "heartbeat_timeout", "termination_grace_time")
    assert [timing[name] for name in kept] == [60, 90, 30, 5]


def test_durations_are_timedeltas_or_seconds() -> None:
    timing = Wrapper(soft_timeout=timedelta(seconds=4), hard_timeout=4.5)._plan.timing
    assert (timing["soft_timeout"], timing["hard_timeout"]) == (4.0, 4.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"soft_timeout": 90}, "soft_timeout must be below hard_timeout.*90 s and.*90 s"),
        ({"hard_timeout": 200}, "hard_timeout must be below barrier_timeout"),
        ({"heartbeat_timeout": 120}, "heartbeat_timeout must be below barrier_timeout"),
        ({"monitor_process_interval": 30}, "monitor_process_interval must be below heartbeat"),
        ({"monitor_thread_interval": 60}, "monitor_thread_interval must be below soft_timeout"),
        ({"progress_watchdog_interval": 60}, "progress_watchdog_interval must be below soft"),
        ({"completion_timeout": 0}, "completion_timeout is 0; it must be .*above 0$"),
        ({"last_call_wait": -1}, "last_call_wait is -1; it must be .*above 0, or 0"),
        ({"soft_timeout": float("nan")}, "soft_timeout is nan; it must be finite"),
        ({"barrier_timeout": 366 * 24 * 3600}, "barrier_timeout is .*at most 3.1536e\\+07 s"),
        ({"max_iterations": 0}, "max_iterations must be at least 1, not 0"),
        ({"min_world_size": 0}, "min_world_size must be at least 1"),
        ({"monitor_process_logfile": "log"}, "must be an absolute path, not 'log'"),
    ],
)
def test_values_out_of_range_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Wrapper(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"soft_timeout": "60"}, "soft_timeout is '60'; it must be a number of seconds or"),
        ({"hard_timeout": True}, "hard_timeout is True; it must be a number of seconds or"),
        ({"last_call_wait": False}, "last_call_wait is False; it must be a number"),
        ({"initialize": print}, "initialize must be an instance of Initialize"),
        ({"abort": object()}, "abort must be an instance of Abort"),
        ({"finalize": 1}, "finalize must be an instance of Finalize"),
        ({"health_check": 1}, "health_check must be an instance of HealthCheck"),
        ({"enabled": 1}, "enabled must be True or False"),
        ({"rank_filter": 1}, "rank_filter must be a RankFilter"),
        ({"rank_assignment": None}, "rank_assignment must be one of ShiftRanks"),
        ({"store_kwargs": {}}, "store_kwargs has no meaning here: there is no store"),
        ({"store_factory": None}, "there is no store"),
        ({"completion": None}, "after the call of the function"),
        ({"terminate": None}, "around the call of the function"),
        ({"monitor_process_pidfile": None}, "the agent watches"),
        ({"sotf_timeout": 1}, "unexpected keyword argument 'sotf_timeout'"),
    ],
)
def test_values_of_a_wrong_kind_and_unknown_arguments_are_named(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        Wrapper(**given)


def test_last_call_wait_may_be_0() -> None:
    assert spec_of(Wrapper(last_call_wait=0)).last_call_wait.seconds == 0


def test_limits_of_a_retry_controller_reach_the_coordinator() -> None:
    wrapper = Wrapper(
        initialize=Compose(inprocess.RetryController(5, 2, 3), inprocess.RetryController(7)),
        max_iterations=6,
        min_world_size=4,
    )
    spec = spec_of(wrapper)
    assert (spec.iterations_max, spec.world_size_min, spec.active_world_size_min) == (5, 4, 3)


def test_rules_go_in_the_order_in_which_they_are_applied() -> None:
    groups = inprocess.FilterCountGroupedByKey("k", lambda size: size in (2, 9))
    wrapper = Wrapper(
        rank_assignment=Compose(inprocess.MaxActiveWorldSize(6), inprocess.FillGaps(), groups),
        rank_filter=inprocess.ActiveWorldSizeDivisibleBy(4),
    )
    rules = spec_of(wrapper, 9).rules
    kinds = [rule.WhichOneof("kind") for rule in rules]
    assert kinds == ["groups", "fill", "active_max", "active_divisor"]
    assert (rules[2].active_max, rules[3].active_divisor) == (6, 4)
    allowed = rules[0].groups.allowed
    assert [n for n in range(8 * len(allowed)) if allowed[n // 8] & (1 << n % 8)] == [2, 9]
    assert groups.group_of(State(rank=0, world_size=9)) == "k"


def test_a_group_is_named_by_a_function_of_the_state_and_cut() -> None:
    groups = inprocess.FilterCountGroupedByKey(lambda state: "é" * state.rank, bool)
    assert groups.group_of(State(rank=3, world_size=4)) == "ééé"
    assert len(groups.group_of(State(rank=99, world_size=100)).encode()) == 128


def test_rules_without_an_effect_are_left_out() -> None:
    assignment = Compose(
        inprocess.ActivateAllRanks(), inprocess.MaxActiveWorldSize(None), inprocess.ShiftRanks()
    )
    assert len(spec_of(Wrapper(rank_assignment=assignment)).rules) == 1


class OwnAssignment(inprocess.RankAssignment):
    def __call__(self, state: State) -> State:
        return state


class OwnFilter(inprocess.RankFilter):
    def __call__(self, state: State) -> State:
        return state


@pytest.mark.parametrize(
    "assignment", [OwnAssignment(), Compose(inprocess.ShiftRanks(), OwnAssignment())]
)
def test_an_assignment_of_the_users_own_is_refused(assignment: Any) -> None:
    with pytest.raises(TypeError, match=r"runs no code of the user's\. Allowed: ShiftRanks"):
        Wrapper(rank_assignment=assignment)


def test_gaps_must_be_closed_after_groups_were_filtered() -> None:
    groups = inprocess.FilterCountGroupedByKey("k", bool)
    for assignment in (
        groups,
        inprocess.MaxActiveWorldSize(3),
        Compose(groups, inprocess.ShiftRanks()),
    ):
        with pytest.raises(ValueError, match="must hold ShiftRanks or FillGaps"):
            Wrapper(rank_assignment=assignment)
    with pytest.raises(ValueError, match="one FilterCountGroupedByKey"):
        Wrapper(rank_assignment=Compose(inprocess.ShiftRanks(), groups, groups))


def test_a_filter_of_the_users_own_is_kept_whole() -> None:
    composed = Compose(inprocess.MaxActiveWorldSize(2), OwnFilter())
    rules, own = ranks.rules_of(inprocess.ShiftRanks(), composed)
    assert len(rules) == 1
    state = State(rank=0, world_size=4, active_rank=0, active_world_size=4)
    assert ranks.filtered(state, own).active_world_size == 2


def test_a_filter_must_leave_active_rank_0_to_rank_0() -> None:
    import dataclasses

    class Backwards(inprocess.RankFilter):
        def __call__(self, state: State) -> State:
            return dataclasses.replace(state, active_rank=state.world_size - 1 - state.rank)

    class Nothing(inprocess.RankFilter):
        def __call__(self, _: State) -> State:
            return None  # type: ignore[return-value]

    state = State(rank=3, world_size=4, active_rank=3, active_world_size=4)
    with pytest.raises(ValueError, match="active rank 0 must be rank 0"):
        ranks.filtered(state, Backwards())
    with pytest.raises(TypeError, match="must return a State"):
        ranks.filtered(state, Nothing())


@pytest.mark.parametrize(
    ("size", "filters", "active"),
    [
        (7, inprocess.ActivateAllRanks(), 7),
        (7, inprocess.MaxActiveWorldSize(4), 4),
        (3, inprocess.MaxActiveWorldSize(4), 3),
        (7, inprocess.ActiveWorldSizeDivisibleBy(3), 6),
        (2, inprocess.ActiveWorldSizeDivisibleBy(3), 0),
        (9, Compose(inprocess.ActiveWorldSizeDivisibleBy(3), inprocess.MaxActiveWorldSize(8)), 6),
    ],
)
def test_filters_mark_who_is_active(size: int, filters: Any, active: int) -> None:
    states = [filters(State(rank=rank, world_size=size)) for rank in range(size)]
    assert [state.active_rank for state in states[:active]] == list(range(active))
    assert all(state.active_rank is None for state in states[active:])
    assert {state.active_world_size for state in states} == {active}


def test_a_wrapper_that_is_not_enabled_changes_nothing() -> None:
    def train() -> None: ...

    assert Wrapper(enabled=False)(train) is train
    with pytest.raises(TypeError, match="takes a function"):
        Wrapper()(1)  # type: ignore[arg-type]


def test_a_wrapped_function_keeps_its_name() -> None:
    @Wrapper()
    def train() -> None:
        """Train."""

    assert (train.__name__, train.__doc__) == ("train", "Train.")


THE_CALL = object.__new__(CallWrapper)


class Method:
    def train(self, x: int, call: Optional[CallWrapper] = None) -> tuple[int, object]:  # noqa: UP045
        return x, call


def _first(call: CallWrapper, x: int) -> tuple[object, int]:
    return call, x


def _last(x: int, call: CallWrapper | None = None) -> tuple[object, int]:
    return call, x


def _named(*, x: int, call: CallWrapper) -> tuple[object, int]:
    return call, x


def _text(x: int, call: inprocess.CallWrapper) -> tuple[object, int]:
    return call, x


def _variadic(call: CallWrapper, *numbers: int, **named: int) -> tuple[object, int]:
    return call, sum(numbers) + sum(named.values())


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (_first, (), {"x": 3}),
        (_last, (3,), {}),
        (_last, (), {"x": 3}),
        (_named, (), {"x": 3}),
        (_text, (3,), {}),
        (_variadic, (), {"a": 1, "b": 2}),
    ],
)
def test_parameters_of_this_kind_get_the_call(
    function: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    assert with_instance(partial(function, *args, **kwargs), THE_CALL)() == (THE_CALL, 3)


def test_methods_and_others_without_annotations_work() -> None:
    assert with_instance(partial(Method().train, 3), THE_CALL)() == (3, THE_CALL)
    assert with_instance(partial(len, "abc"), THE_CALL)() == 3
    assert with_instance(partial(lambda call: call, "given"), THE_CALL)() == "given"

    def unresolved(call: "CallWrapper | Missing") -> object:  # type: ignore[name-defined]  # noqa: F821, UP037
        return call

    assert with_instance(partial(unresolved), THE_CALL)() is THE_CALL


def test_what_is_reported_fits_on_the_wire() -> None:
    error = ValueError("x" * 100_000)
    kind = call.Kind.INTERRUPTION_KIND_EXCEPTION
    message = call.interruption(0, kind, error)
    assert message.ByteSize() < 60_000
    assert len(message.message.encode()) <= 4096


async def coroutine() -> None:
    """Return at once."""


def generator() -> Iterator[int]:
    yield 1


async def both() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_a_function_that_runs_only_later_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__} would run only after the wrapper"):
        Wrapper()(function)


def test_a_wrapper_shows_what_it_was_given() -> None:
    hook = inprocess.ThreadedFinalize(1, print)
    wrapper: Any = Wrapper(finalize=hook, soft_timeout=timedelta(seconds=4), heartbeat_interval=2)
    assert (wrapper.finalize, wrapper.abort is None) == (hook, False)
    assert (wrapper.soft_timeout, wrapper.hard_timeout) == (timedelta(seconds=4), timedelta(0, 90))
    assert wrapper.heartbeat_interval == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("abort", "names are flat here: inprocess.Abort, inprocess.AbortTorchDistributed"),
        ("rank_assignment", "inprocess.ShiftRanks"),
        ("Tree", "docs/inprocess.md, Differences"),
        ("mistyped", "has no attribute 'mistyped'; docs/inprocess.md"),
    ],
)
def test_a_name_known_from_elsewhere_is_missed_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(inprocess, name)


@pytest.mark.parametrize(
    ("directory", "why"), [("", "no agent, as there is"), ("/nowhere", "another process")]
)
def test_a_function_without_restarts_says_so_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, directory: str, why: str
) -> None:
    """As a warning: without any logging set up, these are seen."""
    monkeypatch.setenv(context.WORKER_DIR, directory)
    monkeypatch.setattr(Current, "link", None)
    assert Wrapper()(lambda: 3)() == 3
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert why in record.getMessage()


def test_elsewhere_than_on_linux_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Current, "link", object())
    monkeypatch.setattr(sys, "platform", "plan9")
    with pytest.raises(inprocess.RestartError, match="needs Linux, this is plan9"):
        Wrapper()(lambda: 3)()
