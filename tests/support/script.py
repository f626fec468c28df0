"""Stories as text: a line is a command, and what comes of it is lines again.

    run agents=2:4 restarts=1 join-timeout=600 last-call=30 barrier=60
    join a b lws=8 role=trainer agents=2:4
    fail a b | succeed a | record a age=1.5 stopped
    crash a (its record is still on its way) | again a (sends its last record)
    at a step=40 scope=all-reduce steps=40 took=8 (where its workers stand)
    hang a scope=all-reduce limit=60
    observe a longest=2.5 samples=40 section=save | reset-limits
    stop why | restart why | forget | drain a why | undrain a (by the operator)
    enter a b | complete a b (in process; they obey at once, but enter when told here)
    interrupt a worker=1 kind=EXCEPTION | terminate a worker=0 message=gone
    break a | back a | leave a | silent a
    advance 30s | stall 60s | restart-coordinator | status

Agents do what they are told within the same instant. Several names in one line
are one instant: nobody acts before the last of them has spoken.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DrainAsked, ForgetAsked, RestartAsked, StopAsked
from drumbeat.coordinator.core.inprocess.rank_rules import SHIFT_RANKS, RankRule
from drumbeat.coordinator.core.inprocess.records import InprocessSpec
from drumbeat.coordinator.core.model import AgentIdentity, Exit, Hang, Release, RunSpec, Verdict
from drumbeat.coordinator.core.run.adaptive_timeouts import Observation
from drumbeat.coordinator.observe.steps.worker_progress import Standing, WorkerProgress
from drumbeat.inprocess import (
    InprocessDirective,
    InterruptionKind,
    IterationBegin,
    IterationInterrupt,
)
from drumbeat.model import Assignment, HangKind, Standby, Stop
from tests.support.inprocess.rules import active_max
from tests.support.operator import ask
from tests.support.world import RUN, START, Story, a_spec

SPEC_FIELDS = {
    "restarts": ("restarts_max", int),
    "join-timeout": ("join_timeout_s", float),
    "last-call": ("last_call_s", float),
    "barrier": ("exit_barrier_timeout_s", float),
    "straggler-factor": ("straggler_factor", float),
    "straggler-steps": ("straggler_steps", int),
}


class Script:
    """Plays a story and writes down what people would see of it."""

    def __init__(self) -> None:
        self.story = Story(is_lively=True, watch=self._watch)
        self.lines: list[str] = []
        self.inprocess = InprocessSpec(barrier_timeout_s=60.0)

    def play(self, text: str) -> str:
        """Return the commands, each with what came of it."""
        for line in text.splitlines():
            command = line.split("#")[0].strip()
            if command:
                self.lines.append(f"> {command}")
                self._command(*command.split())
        return "\n".join(self.lines) + "\n"

    def _command(self, verb: str, *words: str) -> None:
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        match verb:
            case "run":
                self.story.spec = self._spec(options)
            case "advance":
                self.story.advance(float(names[0].removesuffix("s")))
            case "stall":
                self.story.stall(float(names[0].removesuffix("s")))
            case "restart-coordinator":
                self.story.restart()
            case "status":
                self._status()
            case "at":
                self._stand(names, options)
            case "observe":
                self._observe(names, options)
            case "reset-limits":
                self._say(f"{self.story.reset_limits()} limits forgotten")
            case "stop" | "restart" | "forget" | "drain" | "undrain":
                self._steer(verb, names)
            case "inprocess":
                self._inprocess(options)
            case "record":
                self._record(names, options)
            case _:
                self._together(names, self._agent_verb(verb, options))

    def _steer(self, verb: str, words: list[str]) -> None:
        if verb in {"drain", "undrain"}:
            fields = {"name": words[0], "is_lifted": verb == "undrain"}
            answer = ask(self.story, DrainAsked, **fields, reason=" ".join(words[1:]))
        elif verb == "forget":
            answer = ask(self.story, ForgetAsked)
        else:
            kind = StopAsked if verb == "stop" else RestartAsked
            answer = ask(self.story, kind, reason=" ".join(words))
        self._say(answer.outcome if isinstance(answer, fx.Steered) else str(answer))

    def _agent_verb(self, verb: str, options: dict[str, str]) -> Callable[[str], object]:
        story = self.story
        verbs: dict[str, Callable[[str], object]] = {
            "fail": lambda name: (story.record(name), story.fail(name)),
            "crash": self._crash,
            "again": lambda name: story.record(name, sequence=story.agents[name].sequence),
            "succeed": story.succeed,
            "join": lambda name: self._join(name, options),
            "hang": lambda name: self._hang(name, options),
            "interrupt": lambda name: self._befall(verb, name, options),
            "terminate": lambda name: self._befall(verb, name, options),
            "enter": self._enter,
            "complete": story.complete,
            "break": story.break_session,
            "back": story.back,
            "leave": story.leave,
            "silent": story.silence,
            "speak": self._speak,
        }
        return verbs[verb]

    def _together(self, names: list[str], do: Callable[[str], object]) -> None:
        self.story.is_lively = False
        for name in names:
            do(name)
        self.story.is_lively = True
        self.story.live()

    def _join(self, name: str, options: dict[str, str]) -> None:
        identity: dict[str, Any] = {"spec": self._spec(options)}
        if "lws" in options:
            identity["local_world_size"] = int(options["lws"])
        if "role" in options:
            identity["role"] = options["role"]
        self.story.join(name, **identity)

    def _inprocess(self, options: dict[str, str]) -> None:
        rules: tuple[RankRule, ...] = (SHIFT_RANKS,)
        if "active-max" in options:
            rules = (*rules, active_max(int(options["active-max"])))
        self.inprocess = InprocessSpec(
            rules=rules,
            world_size_min=int(options.get("min", 0)),
            iterations_max=int(options.get("iterations", 0)),
            barrier_timeout_s=float(options.get("barrier", 60)),
            needs_first_agent="needs-first-agent" in options,
        )

    def _speak(self, name: str) -> None:
        self.story.agents[name].is_silent = False
        self.story.beat(name)

    def _enter(self, name: str) -> None:
        self.story.agents[name].iterates().spec = self.inprocess
        self.story.enter(name)

    def _befall(self, verb: str, name: str, options: dict[str, str]) -> None:
        """Let something befall a worker, and deliver its record."""
        worker, is_end = int(options.get("worker", 0)), verb == "terminate"
        kind = InterruptionKind[options.get("kind", "TERMINATED" if is_end else "EXCEPTION")]
        agent = self.story.agents[name]
        act = self.story.terminate if is_end else self.story.interrupt
        message = options.get("message", "killed" if is_end else "oh")
        iteration = agent.iterates().iteration
        act(name, worker, kind, message)
        self.story.record(
            name,
            interruption=kind,
            iteration=iteration,
            message=message,
            exit_code=-9 if is_end else 0,
            rank=self._rank_of(name, worker),
        )

    def _rank_of(self, name: str, worker: int) -> int:
        """Return a worker's rank in the iteration that its agent knows."""
        seats = self.story.agents[name].iterates().seats
        found = [seat.rank for seat in seats if seat.local_rank == worker]
        current = self.story.state().round
        assert current is not None
        first = current.seats[self.story.agents[name].identity.incarnation].rank_first
        return found[0] if found else first + worker

    def _crash(self, name: str) -> None:
        self.story.agents[name].sequence += 1
        self.story.fail(name)

    def _stand(self, names: list[str], options: dict[str, str]) -> None:
        for name in names:
            agent = self.story.agents[name]
            agent.workers = tuple(
                _progress(rank, options) for rank in range(agent.identity.local_world_size)
            )
            self.story.beat(name)
            agent.workers = ()  # a beat that says nothing of them leaves them where they were

    def _hang(self, name: str, options: dict[str, str]) -> None:
        limit_s = float(options["limit"])
        hang = Hang(
            kind=HangKind(options.get("kind", "TIMER")),
            scope=options.get("scope", ""),
            limit_s=limit_s,
            elapsed_s=limit_s,
            progress=_progress(0, options),
        )
        self.story.record(name, hang=hang, signal_name="SIGTERM")
        self.story.fail(name)

    def _observe(self, names: list[str], options: dict[str, str]) -> None:
        observation = Observation(
            section=options.get("section", ""),
            longest_s=float(options["longest"]),
            samples=int(options["samples"]),
        )
        for name in names:
            self.story.beat(name, observations=(observation,))

    def _record(self, words: list[str], options: dict[str, str]) -> None:
        fields: dict[str, Any] = {"is_stopped_by_agent": "stopped" in words}
        if "age" in options:
            fields["age_s"] = float(options["age"])
        self.story.record(words[0], **fields)

    def _spec(self, options: dict[str, str]) -> RunSpec:
        spec = self.story.spec
        if "agents" in options:
            low, _, high = options["agents"].partition(":")
            numbers = a_spec(int(low), int(high or low))
            spec = replace(spec, agents_min=numbers.agents_min, agents_max=numbers.agents_max)
        for key, (field, kind) in SPEC_FIELDS.items():
            if key in options:
                spec = replace(spec, **{field: kind(options[key])})
        return spec

    # What is seen.

    def _say(self, line: str) -> None:
        self.lines.append(f"{self.story.now - START:7.1f}  {line}")

    def _watch(self, effects: list[fx.Effect]) -> None:
        self.story.registry.check_invariants()
        for effect in effects:
            match effect:
                case fx.Decided(decision=decision, reason=reason):
                    self._say(f"{decision}: {reason}")
                case fx.Direct(session_id=session_id) as desired:
                    name = self.story.sessions[session_id]
                    wanted = _desired(desired, self.story.agents[name].identity)
                    self._say(f"{name} <- {wanted}")
                case fx.Instruct(session_id=session_id, directive=directive):
                    self._say(f"{self.story.sessions[session_id]} <- {_directive(directive)}")
                case fx.Reject(session_id=session_id, error=error):
                    who = self.story.sessions.get(session_id, session_id)
                    self._say(f"{who} refused, {type(error).__name__}: {error}")
                case fx.TellLimits(session_id=session_id, limits=limits):
                    told = ", ".join(f"{at.section!r} {at.limit_s:g} s" for at in limits)
                    self._say(f"{self.story.sessions[session_id]} <- LIMITS: {told or 'none'}")
                case fx.Answer(result=False):
                    self._say("the record is not counted")
                case _:
                    pass

    def _status(self) -> None:
        run = self.story.run()
        state = run.state
        used = f"{state.restarts_used} of {state.spec.restarts_max} restarts"
        self._say(f"{state.phase}, round {state.round_id}, {used}: {run.reason(self.story.now)}")
        if state.iterations_restarted:
            self._say(f"{state.iterations_restarted} restarts in process")
        self._say(f"{RUN}: {len(state.members)} members, {state.failures_count} failure records")


def _directive(directive: InprocessDirective) -> str:
    iteration, kind = directive.iteration, directive.kind
    match kind:
        case IterationBegin():
            ranks = ", ".join(
                f"{seat.rank}" if seat.active_rank is not None else f"{seat.rank} (stands by)"
                for seat in kind.seats
            )
            sizes = f"{kind.world_size}, {kind.active_world_size} active"
            place = f"{kind.master_addr}:{kind.master_port}"
            return f"BEGIN {iteration}: ranks {ranks or 'none'} of {sizes}, {place}"
        case IterationInterrupt(reason=reason):
            return f"INTERRUPT {iteration}: {reason}"
        case _:
            return f"COMPLETE {iteration}"


def _desired(desired: fx.Direct, agent: AgentIdentity) -> str:
    match desired.state:
        case Standby(reason=reason, agents_present=present, agents_wanted=wanted):
            return f"STANDBY: {reason} ({present} present, {wanted} wanted)"
        case Assignment() as own:
            last = own.rank_first + agent.local_world_size - 1
            ranks = f"ranks {own.rank_first}-{last} of {own.world_size}"
            role = f"{agent.role} {own.role_rank_first} of {own.role_world_size}"
            return (
                f"RUN round {own.round_id}: group rank {own.group_rank}, {ranks}, {role}, "
                f"restart {own.restart_count}, {own.master_addr}:{own.master_port}"
            )
        case Stop(reason=reason):
            return f"STOP: {reason}"
        case Release(reason=reason, is_drained=is_drained):
            return f"{'LEAVE' if is_drained else 'RELEASE'}: {reason}"
        case Exit(verdict=verdict):
            return f"EXIT: {_verdict(verdict)}"


def _verdict(verdict: Verdict) -> str:
    outcome = "succeeded" if verdict.is_success else "failed"
    line = f"{outcome}, {verdict.reason}"
    if verdict.report is not None:
        report = verdict.report
        causes = [f"rank {record.worker.rank}" for record in report.root_causes]
        line += f" [root cause {causes or 'unknown'}, {report.victims_count} victims]"
        if report.standings:
            where = "; ".join(_standing(standing) for standing in report.standings)
            line += f" [{report.standings_count} standings: {where}]"
    return line


def _progress(local_rank: int, options: dict[str, str]) -> WorkerProgress:
    """Return where a worker stands that has just said so."""
    scope = options.get("scope", "")
    return WorkerProgress(
        local_rank=local_rank,
        step=int(options["step"]) if "step" in options else None,
        heartbeat_age_s=0.0 if "step" in options else None,
        runtime_age_s=0.0,
        scope=scope,
        scope_age_s=0.0 if scope else None,
        scopes_open=1 if scope else 0,
        steps_timed=int(options.get("steps", 0)),
        steps_s=float(options.get("took", 0)),
    )


def _standing(standing: Standing) -> str:
    at = standing.progress
    line = f"rank {standing.rank} on {standing.host}"
    if at.step is not None:
        line += f", step {at.step} {at.heartbeat_age_s:g} s ago"
    return f"{line}, in {at.scope} for {at.scope_age_s:g} s" if at.scope else line
