"""Any order of events keeps the promises.

Hypothesis tells agents and a coordinator what to do; after every event the
effects and the journal are held against what the design promises. A failing
order is shrunk and printed as calls. ``DRUMBEAT_SEEDS`` sets the number of
orders, which are then drawn at random.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DrainAsked, RestartAsked, StopAsked
from drumbeat.coordinator.core.inprocess.records import InprocessSpec, IterationPhase
from drumbeat.coordinator.core.model import Verdict, VerdictCause
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.adaptive_timeouts import Observation
from drumbeat.coordinator.core.run.records import RunEnded
from drumbeat.coordinator.core.run.state import Phase as RunPhase
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState, NoticeReport, PreflightFinding
from tests.support.journal import fold
from tests.support.operator import ask
from tests.support.orders import orders
from tests.support.run_promises import Promises
from tests.support.traces import journal_spans
from tests.support.world import RUN, Story, StoryAgent, a_spec

NAMES = st.sampled_from("abcdef")

RESTARTS = st.fixed_dictionaries(
    {
        "restarts_max": st.integers(0, 2),
        "restart_delay_max_s": st.sampled_from([0.0, 4.0]),
        "restart_window_s": st.sampled_from([None, 100.0]),
        "no_progress_limit": st.integers(0, 2),
        "restart_rules": st.sampled_from(
            [(), ("exit=1:restart-free",), ("exit=1:fail",), ("exit=1:exclude",)]
        ),
        "free_restarts_max": st.integers(0, 2),
        "exclude_after": st.integers(0, 2),
        "exclude_for_s": st.sampled_from([None, 30.0]),
        "preflight": st.sampled_from(["", "", "check"]),
        "preflight_timeout_s": st.just(30.0),
    }
)


class RunMachine(RuleBasedStateMachine):
    """One run, six hosts, and everything that can befall them."""

    story: Story

    @initialize(
        low=st.integers(1, 3),
        more=st.integers(0, 2),
        restarts=RESTARTS,
        barrier=st.sampled_from([None, 20.0]),
        last_call=st.sampled_from([0.0, 10.0]),
        sizes=st.lists(st.integers(1, 3), max_size=5),
    )
    def begin(
        self,
        low: int,
        more: int,
        restarts: dict[str, Any],
        barrier: float | None,
        last_call: float,
        sizes: list[int],
    ) -> None:
        spec = a_spec(
            low,
            low + more,
            **restarts,
            exit_barrier_timeout_s=barrier,
            last_call_s=last_call,
            join_timeout_s=60.0,
            straggler_factor=1.5,
            straggler_steps=1,
        )
        self.promises = Promises()
        limits = Policy(failures_kept_max=5, checkpoint_grace_s=30.0)
        self.story = Story(policy=limits, spec=spec, watch=self.watch)
        for name, size in zip("abcdef", sizes, strict=False):
            self.join(name, size, "x")
        self.obey_all()

    def watch(self, effects: list[fx.Effect]) -> None:
        """Check what an event caused, and that memory and journal agree on it."""
        for session_id, name in self.story.sessions.items():
            self.promises.whose.setdefault(session_id, self.story.agents[name].identity.incarnation)
        self.promises.check(effects)
        if RUN in self.story.registry.runs:
            self.promises.check_planned(self.story.state(), self.story.registry.drains)
        self.story.registry.check_invariants()
        for run_id, state in fold(self.story.journal).items():
            self.promises.check_excused(state)
            assert state == self.story.state(run_id), "memory is not the fold of the journal"

    def agent(self, name: str) -> StoryAgent | None:
        return self.story.agents.get(name)

    def connected(self, name: str) -> StoryAgent | None:
        """Return the agent of this name, or another one that has a session."""
        known = [a for a in self.story.agents.values() if a.session_id is not None]
        return next(
            (a for a in known if a.name == name), known[ord(name) % len(known)] if known else None
        )

    def running(self, name: str) -> StoryAgent | None:
        """Return such an agent if it holds a round, after it did what it was told."""
        agent = self.connected(name)
        if agent is None:
            return None
        self.story.obey(agent.name)
        return agent if agent.session_id is not None and agent.round_id is not None else None

    @rule(name=NAMES, size=st.integers(1, 3), role=st.sampled_from(["x", "y"]))
    def join(self, name: str, size: int, role: str) -> None:
        """A new process on a host: its predecessor is dead, and may not be noticed yet."""
        if (agent := self.agent(name)) and agent.session_id is not None:
            self.story.break_session(name)
        # Few ports, so that the machine finds out what happens when one comes again.
        self.story.join(name, local_world_size=size, role=role, port=20_000)

    @rule(name=NAMES)
    def back(self, name: str) -> None:
        """A session begins, whether or not the old one is known to be over."""
        if self.agent(name):
            self.story.back(name)

    @rule(name=NAMES)
    def break_session(self, name: str) -> None:
        if agent := self.connected(name):
            self.story.break_session(agent.name)

    @rule(name=NAMES)
    def stale_end(self, name: str) -> None:
        """The end of an old stream is noticed after the agent is back."""
        if agent := self.connected(name):
            old = agent.session_id
            self.story.back(agent.name)
            new, agent.session_id = agent.session_id, old
            self.story.break_session(agent.name)
            agent.session_id = new

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if agent := self.connected(name):
            self.story.leave(agent.name)

    @rule(name=NAMES)
    def silence(self, name: str) -> None:
        if agent := self.connected(name):
            self.story.silence(agent.name)

    @rule(name=NAMES)
    def obey(self, name: str) -> None:
        if agent := self.connected(name):
            self.story.obey(agent.name)

    @rule()
    def obey_all(self) -> None:
        self.story.obey_all()

    @rule(name=NAMES)
    def succeed(self, name: str) -> None:
        if agent := self.running(name):
            self.story.succeed(agent.name)

    @rule()
    def succeed_all(self) -> None:
        for name in list(self.story.agents):
            self.succeed(name)

    @rule(name=NAMES)
    def fail(self, name: str) -> None:
        if agent := self.running(name):
            self.story.fail(agent.name)

    @rule(name=NAMES)
    def enter(self, name: str) -> None:
        if agent := self.running(name):
            self.story.enter(agent.name)

    @rule()
    def enter_all(self) -> None:
        for name in list(self.story.agents):
            self.enter(name)

    @rule()
    def complete_all(self) -> None:
        for name in list(self.story.agents):
            if agent := self.running(name):
                self.story.complete(agent.name)

    @rule(name=NAMES, worker=st.integers(0, 2), is_end=st.booleans())
    def interrupt(self, name: str, worker: int, is_end: bool) -> None:
        if agent := self.running(name):
            act = self.story.terminate if is_end else self.story.interrupt
            act(agent.name, worker)

    @rule(
        name=NAMES,
        state=st.sampled_from(GroupState),
        round_id=st.one_of(st.none(), st.integers(0, 6)),
        port=st.integers(20_000, 20_003),
    )
    def say_anything(self, name: str, state: GroupState, round_id: int | None, port: int) -> None:
        if agent := self.connected(name):
            self.story.beat(agent.name, state, round_id=round_id, port=port)

    @rule(
        name=NAMES,
        step=st.one_of(st.none(), st.integers(0, 3)),
        scope=st.sampled_from(["", "save"]),
        longest=st.floats(0, 100),
        samples=st.integers(0, 40),
    )
    def tell_where(
        self, name: str, step: int | None, scope: str, longest: float, samples: int
    ) -> None:
        if agent := self.running(name):
            worker = WorkerProgress(local_rank=0, step=step, scope=scope)
            observed = Observation(section=scope, longest_s=longest, samples=samples)
            self.story.beat(agent.name, workers=(worker,), observations=(observed,))

    @rule(name=NAMES, times=st.lists(st.sampled_from([0.1, 1.0]), min_size=1, max_size=6))
    def make_steps(self, name: str, times: list[float]) -> None:
        for time in times:
            if agent := self.running(name):
                known = agent.workers[0] if agent.workers else WorkerProgress(local_rank=0)
                timed, took = known.steps_timed + 3, known.steps_s + 3 * time
                worker = WorkerProgress(local_rank=0, steps_timed=timed, steps_s=took)
                self.story.beat(agent.name, workers=(worker,))

    @rule(name=NAMES, ranks=st.lists(st.integers(0, 9), max_size=2))
    def name_ranks(self, name: str, ranks: list[int]) -> None:
        """Name hosts as workers of the preflight do; in another round nobody listens."""
        if agent := self.running(name):
            named = PreflightFinding(ranks=tuple(ranks), reason="slow")
            self.story.beat(agent.name, more={"preflight": (named,)})
            agent.more = {}

    @rule()
    def reset_limits(self) -> None:
        if RUN in self.story.registry.runs:
            self.story.reset_limits()
            assert not self.story.state().limits

    @rule(name=NAMES, step=st.one_of(st.none(), st.integers(0, 3)), is_saved=st.booleans())
    def answer(self, name: str, step: int | None, is_saved: bool) -> None:
        """Say what workers say of the notice that is pending."""
        notice = self.story.state().notice if RUN in self.story.registry.runs else None
        if notice is not None and (agent := self.running(name)):
            said = NoticeReport(
                notice_id=notice.notice_id,
                chosen=notice.chosen,
                proposed=notice.proposed,
                asked=step,
                is_saved=is_saved,
                is_ready=is_saved,
            )
            self.story.beat(agent.name, more={"notice": said})
            agent.more = {}

    @rule(step=st.one_of(st.none(), st.integers(0, 3)))
    def answer_all(self, step: int | None) -> None:
        for name in list(self.story.agents):
            self.answer(name, step, True)

    def ask_without_charge(self, kind: type[Any], **fields: Any) -> None:
        """Steer; what an operator asks for costs no restart. A failure before may, just then."""
        state, now = self.story.state(), self.story.now
        before, iterations = state.restarts_used_at(now), state.iterations
        is_failing = iterations is not None and iterations.phase is IterationPhase.INTERRUPTED
        ask(self.story, kind, **fields)
        assert self.story.state().restarts_used_at(now) - before <= is_failing

    @rule(
        is_stop=st.booleans(),
        call=st.sampled_from(["", "1", "2"]),
        grace=st.sampled_from([None, None, 0.0, 5.0]),
    )
    def steer(self, is_stop: bool, call: str, grace: float | None) -> None:
        if RUN in self.story.registry.runs:
            kind = StopAsked if is_stop else RestartAsked
            self.ask_without_charge(kind, call_id=call, grace_s=grace)

    @rule(
        name=NAMES,
        is_lifted=st.booleans(),
        call=st.sampled_from(["", "1", "2"]),
        grace=st.sampled_from([None, None, 0.0, 5.0]),
    )
    def drain(self, name: str, is_lifted: bool, call: str, grace: float | None) -> None:
        if RUN in self.story.registry.runs:
            fields = {"name": name, "is_lifted": is_lifted, "call_id": call, "grace_s": grace}
            self.ask_without_charge(DrainAsked, **fields)

    @rule(name=NAMES, age=st.floats(0, 5), is_stopped=st.booleans())
    def record(self, name: str, age: float, is_stopped: bool) -> None:
        if self.agent(name):
            self.story.record(name, age_s=age, is_stopped_by_agent=is_stopped)

    @rule(name=NAMES, sequence=st.integers(1, 3))
    def record_again(self, name: str, sequence: int) -> None:
        if (agent := self.agent(name)) and sequence <= agent.sequence:
            self.story.record(name, sequence=sequence)

    @rule(seconds=st.sampled_from([0.2, 1.0, 4.0, 16.0, 70.0]))
    def advance(self, seconds: float) -> None:
        self.story.advance(seconds)

    @rule(seconds=st.sampled_from([2.0, 30.0]))
    def stall(self, seconds: float) -> None:
        self.story.stall(seconds)

    @rule()
    def restart(self) -> None:
        before = dict(fold(self.story.journal))
        self.story.restart()
        assert {i: run.state for i, run in self.story.registry.runs.items()} == before

    @precondition(lambda self: hasattr(self, "story"))
    @invariant()
    def nothing_waits_for_ever(self) -> None:
        """A run that has not ended has an instant at which something happens."""
        registry = self.story.registry
        registry.check_invariants()
        for run in registry.runs.values():
            if run.state.phase is not RunPhase.ENDED:
                assert run.next_deadline() is not None, f"{run.state.phase} waits for ever"
                due = registry.next_deadline()
                assert due is not None

    def teardown(self) -> None:
        """When all is silent, the run ends; when it has, everybody hears the same."""
        story = getattr(self, "story", None)
        if story is None or RUN not in story.registry.runs:
            return
        for name, agent in story.agents.items():
            if agent.session_id is not None:
                story.silence(name)
        story.advance(400)
        assert story.state().phase is RunPhase.ENDED
        assert self.promises.verdict == story.state().verdict
        journal_spans(story.journal)


class IteratingMachine(RunMachine):
    """The same with a round that runs, and hosts that mostly go on with their iterations."""

    @initialize(
        sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4),
        more=st.integers(0, 2),
        restarts=RESTARTS,
        least=st.sampled_from([0, 0, 2]),
    )
    def begin(self, sizes: list[int], more: int, restarts: dict[str, Any], least: int) -> None:
        self.promises = Promises()
        limits = Policy(failures_kept_max=5, checkpoint_grace_s=20.0)
        spec = a_spec(
            1,
            len(sizes) + more,
            **restarts,
            last_call_s=0.0 if more else 10.0,
            join_timeout_s=60.0,
        )
        self.story = Story(policy=limits, spec=spec, watch=self.watch)
        self.least = least
        for name, size in zip("abcdef", sizes, strict=False):
            self.join(name, size, "x")
        self.story.obey_all()
        self.go_on()

    @rule()
    def go_on(self) -> None:
        """Let everybody do what it is told, clean up, and enter."""
        for name in list(self.story.agents):
            if agent := self.running(name):
                agent.iterates().spec = InprocessSpec(
                    world_size_min=self.least, barrier_timeout_s=10.0, completion_timeout_s=20.0
                )
                self.story.enter(agent.name)
        self.story.obey_all()

    @rule()
    def go_on_again(self) -> None:
        self.go_on()

    @rule(name=NAMES, worker=st.integers(0, 2), is_end=st.booleans())
    def stumble(self, name: str, worker: int, is_end: bool) -> None:
        self.interrupt(name, worker, is_end)


@pytest.mark.parametrize("machine", [RunMachine, IteratingMachine])
def test_no_order_of_events_breaks_a_promise(machine: type[RunMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=orders(100, steps=40),
    )


def test_a_restart_that_was_asked_for_in_the_preflight_lasts_until_its_round() -> None:
    """An order that once broke one: progress was heard of before the round began."""
    machine = IteratingMachine()
    restarts = {"preflight": "check", "preflight_timeout_s": 30.0}
    machine.begin(sizes=[1, 1], more=0, restarts=restarts, least=0)
    machine.answer(is_saved=False, name="a", step=None)
    machine.restart()
    machine.steer(call="", grace=None, is_stop=False)
    machine.advance(seconds=16.0)
    machine.join(name="a", role="x", size=1)
    machine.complete_all()
    machine.teardown()


def test_the_watch_can_fail() -> None:
    """A promise that nothing could break would be worth nothing."""
    promises = Promises()
    verdict = Verdict(cause=VerdictCause.WORKER_FAILED, reason="", restart_count=0, round_id=None)
    promises.check_record(RunEnded(verdict=verdict))
    with pytest.raises(AssertionError, match="two verdicts"):
        promises.check_record(RunEnded(verdict=verdict))
