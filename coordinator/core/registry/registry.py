"""Pure. All runs of one coordinator: which exist, which are due, which are remembered.

A run id can be used again once its run has ended; an agent's uptime tells which it belongs to.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from drumbeat.coordinator import errors
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.membership.admission import (
    differences,
    missed_run,
    rounds_error,
    run_closed,
    spec_error,
)
from drumbeat.coordinator.core.membership.drains import Drains
from drumbeat.coordinator.core.membership.load import Load
from drumbeat.coordinator.core.model import KeptDrain, VerdictCause
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.registry.isolation import IsolatedRun, go_on, refuse
from drumbeat.coordinator.core.registry.jobs import group_error, groups_of, together, why_lost
from drumbeat.coordinator.core.registry.throttle import Throttle
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import Phase, RunState, id_and_generation
from drumbeat.coordinator.core.tokens.tokens import Tokens
from drumbeat.deadlines import Deadlines
from drumbeat.text.format import count

# Calls whose repetition is recognized. Later they find no run.
FORGETS_KNOWN_MAX = 64
# Of an ended run in memory, measured with CPython 3.11 and rounded up: its core without the state;
# what a state takes beyond its bytes in a message, of both that there are; an event without text.
CORE_BYTES = 16 * 1024
BYTES_PER_ENCODED_BYTE = 8
ENTRY_BYTES = 896


class Registry:
    """The core of a coordinator. Routes events to runs; a run never sees another."""

    def __init__(self, policy: Policy) -> None:
        self.runs: dict[str, IsolatedRun] = {}  # by `RunState.key`
        self.ended: dict[str, int] = {}  # the bytes of each, in the order of their ends
        self._generations: dict[str, list[IsolatedRun]] = {}  # by run id, the latest last
        self.tokens = Tokens(policy)
        self.drains = Drains(most=policy.drains_max)
        self.drains.count_hosts = self._count_hosts
        self.load = Load(policy)
        self.load.count_members = self._count_members
        self._failures_bytes = 0  # of all runs
        self.quorums: dict[str, KeptQuorum] = {}  # by job, the one that was kept last at the end
        self.forgets = fx.KeepForgets()
        # Ids of runs that the journal has and that cannot be read, with the reason.
        self.set_aside: dict[str, str] = {}
        self._policy = policy
        self._deadlines: Deadlines[str] = Deadlines()
        self._jobs_due: set[str] = set()  # to look at whether enough of their groups can go on
        self._pulse_at: float | None = None  # where others may lead; begins with the first event
        most = policy.refusals_heard_max
        self._refusals = Throttle(policy.refusals_interval_s, keys_max=most)

    def take_over(self, state: RunState, *, now: float) -> list[fx.Effect]:
        """Take over one run that a journal held; ``taken_over`` comes after the last."""
        effects = self._add(state, now)
        self._failures_bytes += state.failures_bytes
        self._schedule(self.runs[state.key])
        return effects

    def taken_over(self) -> list[fx.Effect]:
        """Forget the oldest runs beyond what may be remembered, all being there."""
        ended = [run.state for run in self.runs.values() if run.state.phase is Phase.ENDED]
        for state in sorted(ended, key=lambda state: state.ended_at or 0.0):
            self.ended[state.key] = ended_bytes(state)
        alive = {run.state.run_id for run in self.runs.values() if run.state.verdict is None}
        lost = {drain.run_id for drain in self.drains.exclusions} - alive
        effects = [effect for run_id in sorted(lost) for effect in self._end_exclusions(run_id)]
        return effects + self._forget_oldest()

    def handle(self, event: ev.Event, *, now: float) -> list[fx.Effect]:
        """Take one event in at ``now`` (seconds, the coordinator's clock)."""
        effects = self._ask_groups(event, now) if isinstance(event, ev.OfJob) else None
        effects = self._handle(event, now) if effects is None else effects
        return effects + self._end_lost_jobs(now)

    def _handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        effects: list[fx.Effect] = []
        if self._policy.has_others and (self._pulse_at is None or now >= self._pulse_at):
            self._pulse_at = now + self._policy.pulse_s
        match event:
            case ev.DeadlineReached():
                effects += self.tokens.handle(event, now=now)
                keys = self._deadlines.pop_due(now)
            case ev.OutageEnded() | ev.Deafened():
                keys = list(self.runs)
            case ev.RunRead() | ev.EvidenceTaken() | ev.TurnCame():
                keys = [event.run_id]
            case ev.DrainAsked():
                return self._drain(event, now)
            case ev.ForgetAsked():
                return self._forget_asked(event)
            case ev.TokenCreated() | ev.TokenRevoked():
                return self._change_token(event, now)
            case ev.QuorumFormed():
                return self._keep_quorum(event)
            case _:
                return self._route(event, now)
        for key in keys:
            if (run := self.runs.get(key)) is not None:  # it may have been forgotten meanwhile
                effects += self._deliver(run, event, now)
        return effects

    def groups_of(self, job: str) -> dict[int, RunState]:
        """Return the groups of a job in its present or last life. Linear in runs."""
        return groups_of(job, (run.state for run in self.runs.values()))

    def _ask_groups(self, event: ev.OfJob, now: float) -> list[fx.Effect] | None:
        """Ask the groups of a job that live, or all if none does; ``None``: it is no job."""
        job = event.run_id
        groups = self.groups_of(job) if job and job not in self._generations else {}
        if not groups:
            return None
        run_ids = [state.run_id for state in groups.values() if state.verdict is None]
        run_ids = run_ids or [state.run_id for state in groups.values()]
        effects: list[fx.Effect] = []
        answers: dict[str, fx.AnswerResult] = {}
        for run_id in run_ids:
            asked = replace(event, run_id=run_id)
            if isinstance(asked, ev.ForgetAsked) and run_id != run_ids[-1]:
                asked = replace(asked, call_id="")  # the call is known once all are forgotten
            for effect in self._handle(asked, now):
                if isinstance(effect, fx.Answer):
                    answers[run_id] = effect.result
                else:
                    effects.append(effect)
        return [*effects, fx.Answer(request_id=event.request_id, result=together(answers))]

    def _end_lost_jobs(self, now: float) -> list[fx.Effect]:
        """End the groups of jobs of which too few groups can go on; those that fail end anyway."""
        effects: list[fx.Effect] = []
        while self._jobs_due:
            groups = self.groups_of(self._jobs_due.pop())
            reason = why_lost(groups)
            for state in groups.values() if reason else ():
                if state.phase in (Phase.GATHERING, Phase.RUNNING) and not state.stop_reason:
                    cause = VerdictCause.GROUPS_MISSING
                    closed = ev.EndDecided(run_id=state.run_id, cause=cause, reason=reason)
                    effects += self._deliver(self.runs[state.key], closed, now)
        return effects

    def take_quietly(self, event: ev.BeatReceived, *, now: float) -> bool:
        """Take in a beat that says nothing new, so that it needs no turn; return whether it did."""
        # Its run may come up for a deadline that has moved on, which does no harm.
        run = self._of_agent(event.run_id, event.incarnation)
        return run is not None and run.take_quietly(event, now=now)

    def worth_noting(self, event: ev.CallNoted, *, now: float) -> ev.CallNoted | None:
        """Return what to submit; nothing without such a run, or if the like was noted lately."""
        if event.run_id not in self._generations:
            return None
        if event.kind is not rec.CallKind.ACCESS_REFUSED:
            return event
        left_out = self._refusals.take((event.run_id, event.caller, event.reason), now=now)
        if left_out is None:
            return None
        more = f"; {left_out} more like it since the last" if left_out else ""
        return replace(event, reason=f"{event.reason}{more}")

    def agents_of(self, name: str, run_id: str = "") -> int:
        """Return how many members have this name, or are on this host. Linear in members."""
        runs = (run.state for run in self.runs.values() if run.state.phase is not Phase.ENDED)
        of_run = (state for state in runs if run_id in ("", state.run_id))
        agents = (agent for state in of_run for agent in state.members.values())
        return sum(name in (agent.name, agent.host) for agent in agents)

    def _count_hosts(self) -> int:
        """Return how many hosts the runs that live have together. Linear in members."""
        runs = (run.state for run in self.runs.values() if run.state.phase is not Phase.ENDED)
        agents = (agent for state in runs for agent in state.members.values())
        return len({(agent.host, agent.host_id) for agent in agents})

    def _count_members(self) -> tuple[int, int]:
        """Return how many members are suspect, and how many are connected. Linear in runs."""
        runs = [run.members for run in self.runs.values() if run.state.phase is not Phase.ENDED]
        suspects = sum(len(members.suspects) for members in runs)
        return suspects, sum(len(members.connected) for members in runs)

    def _keep_quorum(self, event: ev.QuorumFormed) -> list[fx.Effect]:
        """Have the quorum of a job kept; one of a job without live runs makes room for it."""
        quorum = event.quorum
        self.quorums.pop(quorum.job, None)
        self.quorums[quorum.job] = quorum
        effects: list[fx.Effect] = [fx.KeepQuorum(quorum=quorum)]
        if len(self.quorums) > self._policy.quorums_kept_max:
            groups = (
                run.state.spec.replica_group
                for run in self.runs.values()
                if run.state.phase is not Phase.ENDED
            )
            live = {group.job for group in groups if group is not None} | {quorum.job}
            over = next((job for job in self.quorums if job not in live), None)
            if over is not None:
                effects.append(fx.KeepQuorum(quorum=self.quorums.pop(over), is_kept=False))
        return [*effects, fx.Answer(request_id=event.request_id, result=None)]

    def _end_exclusions(self, run_id: str) -> list[fx.Effect]:
        """Let hosts take part again in later runs of this id: its run is over."""
        over = self.drains.exclusions_of(run_id)
        for drain in over:
            del self.drains.kept[drain.key]
        return [fx.KeepDrain(drain=drain, is_kept=False) for drain in over]

    @property
    def is_deserted(self) -> bool:
        """Whether two agents or more had a session here, are counted on, and none is present.

        That they have all gone in one moment is less likely than that none can reach this
        coordinator. Linear in members while none is present.
        """
        met_count = 0
        for run in self.runs.values():
            if run.state.phase is Phase.ENDED:
                continue
            if run.members.present_count:
                return False
            met_count += run.members.met_count
        return met_count > 1

    def next_deadline(self) -> float | None:
        """Return when ``DeadlineReached`` is due, ``None`` if nothing is awaited."""
        instants = (self._deadlines.next(), self.tokens.deadline, self._pulse_at)
        return min((at for at in instants if at is not None), default=None)

    def was_deaf(self, *, now: float) -> bool:
        """Return whether agents may have gone to look for another coordinator meanwhile."""
        due, policy = self.next_deadline(), self._policy
        return policy.has_others and due is not None and now - due > policy.deaf_s

    def check_invariants(self) -> None:
        """Assert what must hold between events. Linear in agents; for tests."""
        self.tokens.check_invariants()
        for run in self.runs.values():
            is_latest = self._generations[run.state.run_id][-1] is run
            assert is_latest or run.state.phase is Phase.ENDED, "two runs of an id are alive"
            run.check_invariants()
        assert len(self.ended) <= self._policy.runs_ended_max, "too many ended runs"
        held = sum(run.state.failures_bytes for run in self.runs.values())
        assert held == self._failures_bytes, "failure records are not weighed right"
        listed = {run.state.key for runs in self._generations.values() for run in runs}
        assert listed == self.runs.keys(), "a run that no id leads to"

    def _route(self, event: ev.ToRun, now: float) -> list[fx.Effect]:
        """Deliver what comes from outside to the run it is meant for."""
        if reason := self.why_set_aside(event.run_id):
            return refuse(event, errors.Unavailable(reason))
        match event:
            case ev.SessionOpened():
                return self._open(event, now)
            case ev.FailureReported():
                return self._take_failure(event, now)
            case ev.LimitsReset() | ev.CallNoted() | ev.SteeringAsked():
                return self._to_latest(event, now)
            case _:
                run = self._of_agent(event.run_id, event.incarnation)
                if run is None:
                    return refuse(event, errors.StaleSession("its run is not known here"))
                return self._deliver(run, event, now)

    def _change_token(
        self, event: ev.TokenCreated | ev.TokenRevoked, now: float
    ) -> list[fx.Effect]:
        """Create or revoke a token; the run that it is for, if there is one, has it noted."""
        effects = self.tokens.handle(event, now=now)
        for effect in effects[:1]:
            if isinstance(effect, fx.KeepToken) and effect.token is not None:
                token = effect.token
                how = "revoked" if isinstance(event, ev.TokenRevoked) else "created"
                noted = ev.CallNoted(
                    run_id=token.run_id,
                    kind=rec.CallKind.TOKEN_CHANGED,
                    reason=f"{token} {how}",
                    caller=event.caller,
                )
                effects += self._to_latest(noted, now)
        return effects

    def _to_latest(
        self, event: ev.LimitsReset | ev.CallNoted | ev.Steering, now: float
    ) -> list[fx.Effect]:
        """Deliver what is meant for the latest run of an id."""
        if (runs := self._generations.get(event.run_id)) is not None:
            return self._deliver(runs[-1], event, now)
        if isinstance(event, ev.LimitsReset):
            return [fx.Answer(request_id=event.request_id, result=None)]
        if isinstance(event, ev.Steering):
            return [fx.Answer(request_id=event.request_id, result=errors.UnknownRun(event.run_id))]
        return []

    def _drain(self, event: ev.DrainAsked, now: float) -> list[fx.Effect]:
        """Note who takes no part in rounds, or does again, and tell the runs that live."""
        drains, key, result = self.drains, (event.run_id, event.name), fx.Steered(outcome="")
        effects: list[fx.Effect] = []
        known = drains.kept.get(key)
        is_so = event.is_lifted if known is None else known.is_lifted == event.is_lifted
        if known is not None and known.until_s is not None and not event.is_lifted:
            is_so = False  # what an operator asks for does not end by itself
        if is_so or drains.is_known(key, event.call_id):
            outcome = "not drained" if event.is_lifted else "drained already"
            of_all = drains.kept.get(("", event.name))
            if event.is_lifted and event.run_id and of_all is not None and not of_all.is_lifted:
                outcome = "drained in all runs: undrain it without a run"
            result = fx.Steered(outcome=f"it is {outcome}", is_new=False)
            if is_so and not drains.is_known(key, event.call_id):
                effects += self._tell_runs(event, now)  # training may have less time now
        elif not event.is_lifted and len(drains.active) >= drains.most:
            error = errors.LimitReached("drains_max", drains.most)
            return [fx.Answer(request_id=event.request_id, result=error)]
        else:
            drain = KeptDrain(
                name=event.name,
                run_id=event.run_id,
                reason=event.reason,
                caller=event.caller,
                at_s=now,
                is_lifted=event.is_lifted,
            )
            changed = drains.put(drain, event.call_id)
            effects += [fx.KeepDrain(drain=entry, is_kept=is_kept) for entry, is_kept in changed]
            effects += self._tell_runs(event, now)
            outcome = "it may take part in rounds again" if event.is_lifted else _left(effects)
            result = fx.Steered(outcome=outcome)
        return [*effects, fx.Answer(request_id=event.request_id, result=result)]

    def _tell_runs(self, event: ev.DrainAsked, now: float) -> list[fx.Effect]:
        """Deliver it to the latest run of each id that it is about."""
        effects: list[fx.Effect] = []
        for runs in list(self._generations.values()):
            if event.run_id in ("", runs[-1].state.run_id):
                effects += self._deliver(runs[-1], event, now)
        return effects

    def _forget_asked(self, event: ev.ForgetAsked) -> list[fx.Effect]:
        """Forget all runs of an id, unless the latest lives."""
        run_id, call_id = event.run_id, event.call_id
        runs = self._generations.get(run_id)
        effects: list[fx.Effect] = []
        result: fx.Steered | errors.CoordinatorError
        if call_id and call_id in self.forgets.calls:
            result = fx.Steered(outcome="it is forgotten", is_new=False)
        elif runs is None or self.why_set_aside(run_id):
            keys = [key for key in self.set_aside if id_and_generation(key)[0] == run_id]
            result = fx.Steered(outcome="it is forgotten") if keys else errors.UnknownRun(run_id)
            keys += [run.state.key for run in runs or ()]
            effects += self._forgotten(keys, call_id)
        elif (phase := runs[-1].state.phase) is not Phase.ENDED:
            advice = f"`coordinator stop {run_id}` ends it"
            result = errors.WrongPhase(run_id, f"lives, in the phase {phase}", advice)
        elif runs[-1].members.connected:
            advice = "ask again once they are gone"
            result = errors.WrongPhase(run_id, "still tells its agents how it ended", advice)
        else:
            effects += self._forgotten([run.state.key for run in runs], call_id)
            result = fx.Steered(outcome="it is forgotten")
        return [*effects, fx.Answer(request_id=event.request_id, result=result)]

    def _of_agent(self, run_id: str, incarnation: str) -> IsolatedRun | None:
        """Return the run of this id that the agent is a member of, else the latest."""
        runs = self._generations.get(run_id)
        if runs is None:
            return None
        if incarnation in runs[-1].state.members:
            return runs[-1]
        return next((run for run in reversed(runs) if incarnation in run.state.members), runs[-1])

    def _open(self, event: ev.SessionOpened, now: float) -> list[fx.Effect]:
        """Let an agent into its run: the one it is a member of, the latest, or a new one."""
        run = self._of_agent(event.run_id, event.agent.incarnation)
        if run is None:
            return self._create(event, now)
        state = run.state
        if event.agent.incarnation in state.members or not run.is_sound:
            return self._deliver(run, event, now)
        began_at = None if event.uptime_s is None else now - event.uptime_s
        before = state.predecessor_ended_at
        if state.ended_at is not None:
            # One that says no uptime is not known to be younger, nor is one that holds a round,
            # unless that run had none like it: then an older copy of the journal was restored.
            held = event.beat.round_id
            is_new = held is None or held >= state.next_round_id
            if began_at is not None and is_new and began_at >= state.ended_at:
                return self._create(event, now, predecessor=state)
        elif began_at is not None and before is not None and began_at < before:
            earlier = self._generations[event.run_id][-2:-1]
            error = run_closed(event.run_id, earlier[0].state if earlier else None)
            return [fx.Reject(session_id=event.session_id, error=error)]
        elif not run.members.connected and event.spec != state.spec:
            return self._supersede(run, event, now)
        return self._deliver(run, event, now)

    def _supersede(self, run: IsolatedRun, event: ev.SessionOpened, now: float) -> list[fx.Effect]:
        """Start anew for an agent with other settings, in the place of a run all have left."""
        mismatches = differences(theirs=event.spec, ours=run.state.spec)
        error = self._create_error(event, now, replaced=run)
        if error is None and run.state.members:
            error = errors.RunMissesAgents(event.run_id, mismatches)
        if error is not None:
            return [fx.Reject(session_id=event.session_id, error=error)]
        listed = "; ".join(str(difference) for difference in mismatches)
        reason = f"all agents had left, and {event.agent.host} came with other settings: {listed}"
        closed = ev.EndDecided(run_id=event.run_id, cause=VerdictCause.SUPERSEDED, reason=reason)
        effects = self._deliver(run, closed, now)
        if run.state.phase is not Phase.ENDED:  # it broke
            return [*effects, *self._deliver(run, event, now)]
        return [*effects, *self._create(event, now, predecessor=run.state)]

    def _take_failure(self, event: ev.FailureReported, now: float) -> list[fx.Effect]:
        """Hand a record to its run, with what all others leave of the budget."""
        run, record = self._of_agent(event.run_id, event.record.incarnation), event.record
        ended_at = run.state.predecessor_ended_at if run is not None else None
        if run is None or (ended_at is not None and now - record.age_s < ended_at):
            return [fx.Answer(request_id=event.request_id, result=False)]
        policy, held = self._policy, run.state.failures_bytes
        left = policy.failures_bytes_max - (self._failures_bytes - held)
        room = min(policy.failures_bytes_per_run_max, left)
        run.allow_failures(max(policy.failures_bytes_least, room))
        return self._deliver(run, event, now)

    def _create(
        self, event: ev.SessionOpened, now: float, *, predecessor: RunState | None = None
    ) -> list[fx.Effect]:
        missed = missed_run(predecessor, event) if predecessor is not None else None
        if (error := missed or self._create_error(event, now)) is not None:
            return [fx.Reject(session_id=event.session_id, error=error)]
        record = rec.RunCreated(
            run_id=event.run_id,
            spec=event.spec,
            failures_kept_max=self._policy.failures_kept_max,
            history_max=self._policy.history_max,
            generation=1
            + (predecessor.generation if predecessor is not None else self.forgets.generation),
            predecessor_ended_at=predecessor.ended_at if predecessor is not None else None,
            created_by=event.caller[: rec.CALLER_CHARACTERS_MAX],
            created_at=now,
            labels=event.labels,
        )
        state = RunState.created(record)
        effects = [fx.Persist(run_id=state.key, record=record), *self._add(state, now)]
        effects += self._deliver(self.runs[state.key], event, now)
        return effects + self._forget_oldest(event.run_id)

    def _create_error(
        self, event: ev.SessionOpened, now: float, *, replaced: IsolatedRun | None = None
    ) -> errors.CoordinatorError | None:
        """Return why there can't be such a run, once the one that it replaces has ended."""
        policy, caller = self._policy, event.caller[: rec.CALLER_CHARACTERS_MAX]
        runs_beside = (run for run in self.runs.values() if run is not replaced)
        if error := spec_error(event.spec, policy) or group_error(event, runs_beside, now):
            return error
        if len(self.runs) - len(self.ended) - (replaced is not None) >= policy.runs_max:
            return errors.LimitReached("runs_max", policy.runs_max)
        if caller:
            runs = (run.state for run in self.runs.values() if run is not replaced)
            waiting = (state for state in runs if state.phase is Phase.GATHERING)
            most = policy.runs_waiting_per_caller_max
            if sum(state.created_by == caller for state in waiting) >= most:
                return errors.LimitReached("runs_waiting_per_caller_max", most)
        return rounds_error(event.beat, next_round_id=0)

    def _add(self, state: RunState, now: float) -> list[fx.Effect]:
        """Take a run in, ended if it can't go on."""
        run, effects = go_on(state, self._policy, now, self.drains, self.load)
        self._look_at_job(state)
        self.runs[state.key] = IsolatedRun(run, self._policy)
        self._generations.setdefault(state.run_id, []).append(self.runs[state.key])
        return effects

    def _deliver(
        self, run: IsolatedRun, event: ev.CoreEvent | ev.RunRead, now: float
    ) -> list[fx.Effect]:
        before, was_ended = run.state.phase, run.state.phase is Phase.ENDED
        failures_bytes = run.state.failures_bytes
        effects = run.handle(event, now=now)
        state = run.state
        self._failures_bytes += state.failures_bytes - failures_bytes
        self._schedule(run)
        if state.phase is not before or isinstance(event, ev.RunRead):
            self._look_at_job(state)
        has_changed = any(isinstance(effect, fx.Persist) for effect in effects)
        if state.phase is Phase.ENDED and (has_changed or not was_ended):
            self.ended[state.key] = ended_bytes(state)
        if state.phase is Phase.ENDED and not was_ended:
            effects += self._end_exclusions(state.run_id)
            effects += self._forget_oldest(state.run_id)
        return effects

    def _look_at_job(self, state: RunState) -> None:
        if (group := state.spec.replica_group) is not None:
            self._jobs_due.add(group.job)

    def _schedule(self, run: IsolatedRun) -> None:
        due = run.next_deadline()
        if due is None:
            self._deadlines.clear(run.state.key)
        else:
            self._deadlines.set(run.state.key, due)

    def _forget_oldest(self, run_id: str = "") -> list[fx.Effect]:
        """Forget the oldest ended runs of this id, and of all, beyond what may be remembered."""
        policy = self._policy
        older = self._generations.get(run_id, [])[:-1]  # all of them have ended
        surplus = older[: max(0, len(older) - policy.runs_ended_per_id_max)]
        keys = [run.state.key for run in surplus]
        left = {key: size for key, size in self.ended.items() if key not in keys}
        size = sum(left.values())
        while len(left) > policy.runs_ended_max or (
            len(left) > 1 and size > policy.runs_ended_bytes_max
        ):
            oldest = next(iter(left))
            size -= left.pop(oldest)
            keys.append(oldest)
        return self._forgotten(keys)

    def _forgotten(self, keys: list[str], call_id: str = "") -> list[fx.Effect]:
        """Forget runs, asked by a call or not; no other run ever has the key of one of them."""
        if not keys:
            return []
        for key in keys:
            self.set_aside.pop(key, None)
            if (run := self.runs.pop(key, None)) is not None:
                del self.ended[key]
                runs = self._generations[run.state.run_id]
                runs.remove(run)
                if not runs:
                    del self._generations[run.state.run_id]
                self._deadlines.clear(key)
        calls = (*self.forgets.calls, call_id)[-FORGETS_KNOWN_MAX:] if call_id else None
        highest = max(id_and_generation(key)[1] for key in keys)
        self.forgets = fx.KeepForgets(
            calls=self.forgets.calls if calls is None else calls,
            generation=max(highest, self.forgets.generation),
        )
        return [*(fx.Forget(run_id=key) for key in keys), self.forgets]

    def why_set_aside(self, run_id: str) -> str:
        """Return why the latest run of an id can't be served; empty: it can, or there is none."""
        if not self.set_aside:
            return ""
        runs = self._generations.get(run_id)
        known = runs[-1].state.generation if runs else 0
        for key, reason in self.set_aside.items():
            of_run, generation = id_and_generation(key)
            if of_run == run_id and generation > known:
                return (
                    f"run {run_id} is set aside: {reason}; `coordinator forget {run_id}` drops it"
                )
        return ""


def _left(effects: list[fx.Effect]) -> str:
    """Say how many agents leave by these, and when."""
    records = [effect.record for effect in effects if isinstance(effect, fx.Persist)]
    left = sum(isinstance(record, rec.AgentRemoved) and record.is_drained for record in records)
    drained = rec.CallKind.AGENT_DRAINED
    noted = sum(isinstance(record, rec.CallNoted) and record.kind is drained for record in records)
    who = [f"{count(left, 'agent')} left"] if left else []
    if noted > left:
        who += [f"{count(noted - left, 'agent')} to leave once training has saved"]
    leaving = ", ".join(who) or "no agent of that name is here"
    return f"{leaving}; those that come wait until `coordinator undrain`"


def ended_bytes(state: RunState) -> int:
    """Return what an ended run holds in memory, never less than it does. Linear in the state.

    Readers have a state of their own beside that of the core.
    """
    fields = [getattr(state, name) for name in RunState.__slots__ if name != "history"]
    size = BYTES_PER_ENCODED_BYTE * len(msgspec.msgpack.encode(fields))
    for entry in state.history:
        text = "".join((entry.reason, entry.caller, *entry.names, entry.tail, entry.latest))
        size += ENTRY_BYTES + len(text) * (2 if text.isascii() else 8)
    return CORE_BYTES + size
