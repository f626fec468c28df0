"""Pure. One round's restarts in process: when an iteration begins, and how it ends.

What hosts report changes counts here; ``decide`` looks at them and not at the report, so that
a repeated or lost one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import islice

from msgspec.structs import replace

from drumbeat.coordinator.core.inprocess import records as rec
from drumbeat.coordinator.core.inprocess.rank_rules import assign
from drumbeat.coordinator.core.inprocess.roster import (
    FAULTS_NAMED_MAX,
    Barrier,
    Entry,
    Fault,
    Roster,
    faults_named,
)
from drumbeat.coordinator.core.model import Round, Seat
from drumbeat.coordinator.core.phases.rendezvous import GiveUp, Wait
from drumbeat.coordinator.core.run.reasons import NAMES_SHOWN_MAX, listed
from drumbeat.inprocess import InprocessStep, Interruption, InterruptionKind
from drumbeat.text.format import count

# Workers whose faults are kept of one iteration; a machine room can fail at once.
FAULTS_KEPT_MAX = 64
# How old the sentence on a barrier that many are missing at may be: they come within moments.
WORDED_S = 1.0

Address = tuple[str, int]
# Returns where rank 0 can listen on an agent's host, or what there is to wait for.
FindAddress = Callable[[str], Address | Wait | GiveUp]

_wait = partial(Wait, agents_wanted=0)


class Iterations:
    """The in-process restarts of one round. Not thread-safe; one owner calls it.

    The owner calls ``decide`` after each event, journals the record that it returns,
    folds it into ``state`` and calls ``noted``, until it returns no record.
    """

    def __init__(
        self, state: rec.IterationState, current: Round, *, lost: Iterable[str] = (), now: float
    ) -> None:
        """Begin with ``state`` (also of an earlier life), without the agents ``lost`` since."""
        self.state = state
        self.roster = Roster(current, state.order, state.active_world_size)
        # To complete the present iteration, to enter the next one.
        self._completion, self._entry = Barrier(), Entry()
        # Of workers that are gone since the latest iteration began.
        self._leavers: dict[int, Fault] = {}
        self._groups = [""] * state.world_size
        # What interrupts the present iteration: by worker, or why if no worker says it.
        self._faults: dict[int, Fault] = {}
        self._cause = ""
        # Since when workers are gone that have failed at nothing, and nothing else is wrong.
        self._exited_since: float | None = None
        self._interrupted_since = now
        # The agent that leads the next iteration, which may hold no port yet, and its record.
        self._ready: tuple[str, rec.IterationBegan] | GiveUp | None = None
        self._give_up: GiveUp | None = None
        self._expect_all()
        for incarnation in lost:
            self.agent_lost(incarnation, "it was lost")

    def reported(self, incarnation: str, report: rec.InprocessReport, *, now: float) -> None:
        """Take a host's report of this round in. Constant, but for what it names."""
        host = self.roster.live.get(incarnation)
        if host is None:
            return
        state, iteration, step = self.state, report.iteration, report.step
        if iteration == state.iteration:
            self._note_progress(host, report, now)
        self._take_terminated(host, report.terminated, now)
        self._note_ahead(host, report, now)
        if iteration < state.next_iteration or step is InprocessStep.OUTSIDE:
            return
        is_expected = step in (InprocessStep.ENTERED, InprocessStep.INTERRUPTED)
        name = host.agent.name
        if incarnation not in self.roster.live:
            self._entry.is_deserted = True
        elif iteration > state.next_iteration or not is_expected:
            where = f"{name} is {step} in iteration {iteration}, but the next one to begin is"
            why = f"{where} {state.next_iteration}: the round's state was lost"
            self._give_up = self._give_up or GiveUp(reason=why)
        elif step is InprocessStep.ENTERED:
            self._enter(host, report, now)
        elif self._entry.early is None:
            faults = islice(self._faults_in(host, report.interruptions), FAULTS_NAMED_MAX)
            why = faults_named([fault for _, fault in faults])
            self._entry.early = iteration, why or f"{name} did not wait for it to begin"
            self._note_overtaken(host)

    def agent_lost(self, incarnation: str, why: str) -> None:
        """Go on without a host. Linear in its workers."""
        if (host := self.roster.live.get(incarnation)) is not None:
            self._retire(host, InterruptionKind.HOST_LOST, why)

    def noted(self, record: rec.IterationRecord, *, now: float) -> None:
        """Follow a record that has just been folded into ``state``."""
        self._ready = None
        match record:
            case rec.IterationBegan():
                self._leavers, self._faults, self._cause = {}, {}, ""
                self._exited_since = None
                self.roster.seat(self.state.order, self.state.active_world_size)
                self._expect_all()
            case rec.IterationInterrupted():
                self._interrupted_since, self._exited_since, self._cause = now, None, ""
                if self._entry.early is not None and self._entry.early[0] == record.iteration:
                    self._faults = {}
                    self._entry = Entry(dict(self.roster.live))
                self._completion = Barrier()
            case rec.IterationCompleted():
                self._completion = Barrier()

    @property
    def is_engaged(self) -> bool:
        """Whether failures are decided on here, and not by the round."""
        entry, is_in_call = self._entry, self._is_in_call() or self._is_any_entered()
        # None is left that could enter: what those did that ended is decided here, too.
        is_over = entry.is_deserted and not self.roster.live
        return bool(is_in_call or is_over or entry.early or self._give_up)

    @property
    def needs_first_agent(self) -> bool:
        """Whether no iteration can follow once the agent of the round's rank 0 is lost."""
        return self._present_spec().needs_first_agent

    @property
    def first_fault(self) -> Fault | None:
        """The first that is known of the present iteration."""
        return next(iter(self._faults.values()), None)

    def decide(
        self, find_address: FindAddress, *, now: float
    ) -> rec.IterationRecord | GiveUp | Wait | None:
        """Return what follows from the state as it is; ``None``: nothing until an event comes.

        ``GiveUp`` ends the round as one whose workers failed.
        """
        if self._give_up is not None:
            return self._give_up
        if self.state.phase is rec.IterationPhase.RUNNING:
            return self._decide_running(now)
        if not self.is_engaged:
            return None
        if self._entry.early is not None:
            return self._interrupted(*self._entry.early, now)
        return self._decide_barrier(find_address, now)

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in workers; for tests."""
        state, roster = self.state, self.roster
        state.check_invariants()
        roster.check_invariants()
        for barrier in (self._completion, self._entry):
            assert barrier.missing.keys() <= roster.live.keys(), "waits for a host that is gone"
        assert len(self._faults) <= FAULTS_KEPT_MAX, "too many faults"
        ranks = [roster.ranks[worker] for worker in state.order]
        assert ranks == list(range(len(state.order))), "ranks are not those of the order"
        if state.phase is rec.IterationPhase.RUNNING and not self._faults:
            assert roster.gone.isdisjoint(state.order), "a worker that is gone takes part"

    def _note_progress(self, host: Seat, report: rec.InprocessReport, now: float) -> None:
        """Take in what a report says of the iteration that began last."""
        phase, done = self.state.phase, self._completion
        if phase is rec.IterationPhase.RUNNING:
            self._add_faults(self._faults_in(host, report.interruptions))
            if report.step is InprocessStep.INTERRUPTED:
                if not self._faults:
                    self._cause = self._cause or f"{host.agent.name} did not say why"
            elif report.step is InprocessStep.COMPLETED:
                done.missing.pop(host.agent.incarnation, None)
                # A host of spares has only heard that it began.
                active = range(self.state.active_world_size)
                if done.since is None and any(r in active for r in self.roster.ranks_of(host)):
                    done.since = now
        elif phase is rec.IterationPhase.INTERRUPTED and now <= self._last_call_until():
            self._add_faults(self._faults_in(host, report.interruptions))

    def _faults_in(
        self, host: Seat, interruptions: Iterable[Interruption]
    ) -> Iterator[tuple[int, Fault]]:
        """Make a fault of what a host reports of each of its workers."""
        for interruption in interruptions:
            if interruption.local_rank < host.agent.local_world_size:
                worker = host.rank_first + interruption.local_rank
                yield worker, self.roster.fault_of(worker, interruption.kind, interruption.message)

    def _add_faults(self, faults: Iterable[tuple[int, Fault]]) -> None:
        """Keep what is new of workers with a rank."""
        for worker, fault in faults:
            if self.roster.ranks[worker] >= 0 and len(self._faults) < FAULTS_KEPT_MAX:
                self._faults.setdefault(worker, fault)

    def _note_ahead(self, host: Seat, report: rec.InprocessReport, now: float) -> None:
        """Take in which of a host's workers need not be waited for any more."""
        state, who, done = self.state, host.agent.incarnation, self._completion
        if not report.ahead or who not in self.roster.live:
            return
        if report.step is InprocessStep.RUNNING:
            if who in done.missing and report.iteration == state.iteration:
                done.ahead[who] = frozenset(report.ahead)
                done.since = now if done.since is None else done.since
            return
        is_first = report.step is InprocessStep.OUTSIDE
        entered = report.iteration if is_first else report.iteration + 1
        if entered == state.next_iteration and who in self._entry.missing:
            self._take_entry(host, report, now)
            self._entry.ahead[who] = frozenset(report.ahead)

    def _take_terminated(self, host: Seat, terminated: Iterable[Interruption], now: float) -> None:
        """Go on without these workers; if the iteration runs and counts on one, it is over."""
        for worker, fault in self._faults_in(host, terminated):
            if worker in self.roster.gone:
                continue
            self._leavers[worker] = fault
            self._remove(host, [worker])
            if self.state.phase is rec.IterationPhase.RUNNING:
                self._add_faults([(worker, fault)])
                if self._exited_since is None and fault.is_exit:
                    self._exited_since = now

    def _enter(self, host: Seat, report: rec.InprocessReport, now: float) -> None:
        """Count a host that waits for the next iteration."""
        if self.state.phase is rec.IterationPhase.RUNNING:
            self._add_faults(self._faults_in(host, report.before))
        self._take_entry(host, report, now)
        self._entry.ahead.pop(host.agent.incarnation, None)
        if self._entry.missing.pop(host.agent.incarnation, None) is not None:  # else repeated
            self._note_overtaken(host)

    def _take_entry(self, host: Seat, report: rec.InprocessReport, now: float) -> None:
        """Take what a host brings to the next iteration; the first one starts the barrier."""
        if not self._is_any_entered():
            self._entry.since, self._entry.spec = now, None
        if report.spec is not None:
            self._agree(host, report.spec)
        if report.groups and host.agent.incarnation in self._entry.missing:
            groups = report.groups[: host.agent.local_world_size]
            self._groups[host.rank_first : host.rank_first + len(groups)] = groups

    def _note_overtaken(self, host: Seat) -> None:
        """End an iteration that a host has left: its later report overtook the one that said so."""
        if self.state.phase is rec.IterationPhase.RUNNING:
            self._cause = self._cause or f"{host.agent.name} entered the next one"

    def _agree(self, host: Seat, spec: rec.InprocessSpec) -> None:
        """Hold a host's spec against that of the call."""
        if self._is_in_call() and self.state.spec is not None:
            expected, whose = self.state.spec, "in the iteration before"
        elif self._entry.spec is not None:
            expected, whose = self._entry.spec[0], f"on {self._entry.spec[1]}"
        else:
            self._entry.spec = (spec, host.agent.name)
            return
        if spec != expected and self._give_up is None:
            differing = [
                f"{name} {_value(one)} on {host.agent.name}, {_value(other)} {whose}"
                for name in spec.__struct_fields__
                if (one := getattr(spec, name)) != (other := getattr(expected, name))
            ]
            why = f"workers disagree on how to restart in process: {'; '.join(differing)}"
            self._give_up = GiveUp(reason=why)

    def _retire(
        self, host: Seat, kind: InterruptionKind, why: str, *, but: Collection[int] = ()
    ) -> None:
        """Go on without a host's workers ``but`` some; if an iteration runs, it is over."""
        left = [w for w in self.roster.left_of(host) if w - host.rank_first not in but]
        if not left:
            return
        fault = self.roster.fault_of(left[0], kind, why, workers=len(left))
        self._leavers[left[0]] = fault
        self._remove(host, left)
        if self.state.phase is rec.IterationPhase.RUNNING:
            self._add_faults([(left[0], fault)])

    def _remove(self, host: Seat, workers: Iterable[int]) -> None:
        for worker in workers:
            self.roster.remove(host, worker)
        self._ready = None
        if host.agent.incarnation not in self.roster.live:
            for barrier in (self._completion, self._entry):
                barrier.missing.pop(host.agent.incarnation, None)
                barrier.ahead.pop(host.agent.incarnation, None)

    def _expect_all(self) -> None:
        """Wait for every host that has workers left: to complete the iteration, then to enter."""
        self._entry = Entry(dict(self.roster.live))
        is_running = self.state.phase is rec.IterationPhase.RUNNING
        self._completion = Barrier(dict(self.roster.live) if is_running else {})

    def _decide_running(self, now: float) -> rec.IterationRecord | Wait | None:
        state, done, faults = self.state, self._completion, list(self._faults.values())
        why = faults_named(faults) or self._cause
        if not self._cause and all(fault.is_exit for fault in faults):
            limit_s = self._present_spec().completion_timeout_s
            if not done.missing:
                return self._completed(now)
            if faults:
                if now < (until := self._last_call_until()):
                    left = f"waiting for others to follow, {until - now:.1f} s left"
                    return _wait(reason=f"{why}; {left}", until=until)
            elif done.since is None:
                return None
            elif now < (until := done.since + limit_s):
                return self._wait_at(done, "completed", state.iteration, until=until, now=now)
            else:
                late = listed(self.roster.late(done), len(done.missing))
                why = f"not completed by {late} within {limit_s:g} s of the first that did"
        return self._interrupted(state.iteration, why, now)

    def _completed(self, now: float) -> rec.IterationCompleted:
        state = self.state
        return rec.IterationCompleted(round_id=state.round_id, iteration=state.iteration, at_s=now)

    def _interrupted(self, iteration: int, why: str, now: float) -> rec.IterationInterrupted:
        reason, round_id = f"iteration {iteration} was interrupted: {why}", self.state.round_id
        return rec.IterationInterrupted(
            round_id=round_id, iteration=iteration, reason=reason, at_s=now
        )

    def _last_call_until(self) -> float:
        """Return until when more is heard of an interruption, or others may exit as well."""
        since = self._interrupted_since if self._exited_since is None else self._exited_since
        return since + self._present_spec().last_call_wait_s

    def _decide_barrier(
        self, find_address: FindAddress, now: float
    ) -> rec.IterationRecord | GiveUp | Wait:
        state, entry, leavers = self.state, self._entry, self._leavers.values()
        is_deserted = not self.roster.live and bool(leavers) and bool(state.order)
        if is_deserted and all(fault.is_exit for fault in leavers):
            return self._completed(now)
        iteration, limit_s = state.next_iteration, self._present_spec().barrier_timeout_s
        until = self._barrier_deadline()
        if entry.missing and now < until:
            return self._wait_at(entry, "entered", iteration, until=until, now=now)
        for host in list(entry.missing.values()):
            why = f"did not enter iteration {iteration} within {limit_s:g} s"
            entered = entry.ahead.get(host.agent.incarnation, ())
            self._retire(host, InterruptionKind.BARRIER_TIMEOUT, why, but=entered)
            entry.missing.pop(host.agent.incarnation, None)
        if self._ready is None:
            self._ready = self._rank_all()
        if isinstance(self._ready, GiveUp):
            return self._ready
        leader, record = self._ready
        match find_address(leader):
            case GiveUp(reason=why):
                return GiveUp(reason=f"{record.reason}; {why}")
            case Wait() as wait:
                return replace(wait, reason=f"iteration {iteration} is {wait.reason}")
            case address, port:
                return replace(record, master_addr=address, master_port=port, at_s=now)

    def _rank_all(self) -> tuple[str, rec.IterationBegan] | GiveUp:
        """Look for an order of those that are left, and its leader. Linear in workers."""
        state, spec, roster, leavers = self.state, self._present_spec(), self.roster, self._leavers
        why, used, is_in_call = "", 0, self._is_in_call()
        if is_in_call:
            # With what was heard since it was interrupted.
            named = faults_named(self._faults.values())
            why = f"iteration {state.iteration} was interrupted: {named}" if named else state.reason
            used = state.next_iteration - state.call_first
        if spec.iterations_max and used >= spec.iterations_max:
            return GiveUp(reason=f"{why}; all {used} iterations of the call are used")
        ranking = assign(
            state.workers,
            gone=roster.gone,
            groups=self._groups,
            rules=spec.rules,
            world_size_min=spec.world_size_min,
            active_world_size_min=spec.active_world_size_min,
        )
        hosts = count(len(roster.live), "host")
        reason = why or f"{hosts} entered iteration {state.next_iteration}"
        # Of those whose faults are named already the rank is enough.
        names = [fault.who for worker, fault in leavers.items() if worker in self._faults]
        names += [str(fault) for worker, fault in leavers.items() if worker not in self._faults]
        discarded = () if isinstance(ranking, str) else ranking.discarded
        for worker in discarded[:FAULTS_NAMED_MAX]:
            size = f"its group {self._groups[worker]!r} has a size that is not allowed"
            names.append(str(roster.fault_of(worker, InterruptionKind.DISCARDED, size)))
        if gone := len(leavers) + len(discarded):
            reason = f"{reason}; without {listed(names, gone, most=FAULTS_NAMED_MAX)}"
        if isinstance(ranking, str):
            return GiveUp(reason=f"{reason}; {ranking}")
        return roster.host_of(ranking.order[0]).agent.incarnation, rec.IterationBegan(
            round_id=state.round_id,
            iteration=state.next_iteration,
            active_world_size=ranking.active_world_size,
            master_addr="",
            master_port=0,
            cuts=ranking.cuts,
            spec=None if is_in_call and spec == state.spec else spec,
            reason=reason,
            exited=sum(fault.is_exit for fault in leavers.values()),
        )

    def _wait_at(
        self, barrier: Barrier, reached: str, iteration: int, *, until: float, now: float
    ) -> Wait:
        is_many = len(barrier.missing) > NAMES_SHOWN_MAX
        if barrier.wait is None or not is_many or now >= barrier.worded_at + WORDED_S:
            live, missing = len(self.roster.live), len(barrier.missing)
            so_far = f"{live - missing} of {count(live, 'host')} {reached} iteration {iteration}"
            late = listed(self.roster.late(barrier), missing)
            what = f"{so_far}, waiting for {late}, {until - now:.0f} s left"
            barrier.wait, barrier.worded_at = _wait(reason=what, until=until), now
        return barrier.wait if barrier.wait.until == until else replace(barrier.wait, until=until)

    def _is_any_entered(self) -> bool:
        return bool(self._entry.ahead) or len(self._entry.missing) < len(self.roster.live)

    def _is_in_call(self) -> bool:
        """Return whether the next iteration is of the same call as the present one."""
        return self.state.phase in (rec.IterationPhase.RUNNING, rec.IterationPhase.INTERRUPTED)

    def _present_spec(self) -> rec.InprocessSpec:
        """Return the spec of the call, else that of the first host that entered."""
        if self._is_in_call() and self.state.spec is not None:
            return self.state.spec
        return self._entry.spec[0] if self._entry.spec is not None else rec.InprocessSpec()

    def _barrier_deadline(self) -> float:
        since = self._interrupted_since
        if self.state.phase is not rec.IterationPhase.INTERRUPTED and self._entry.since is not None:
            since = self._entry.since
        return since + self._present_spec().barrier_timeout_s


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(str(rule) for rule in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
