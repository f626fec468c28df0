"""Stories of what is observed of a run, as text: a line is a command, and some show something.

    run 2 restarts_max=1 (agents a, b, … run the first round) | wait 2 (none is there yet)
    join a lws=2 role=actor | obey a b | fail b | succeed a | leave b | silence b | back a
    train 0:20 | train none:20 (a step a second, of all agents) | at a b step=3 age=1 worker=0
    pace 3 c=0.25 (beats, one a second, of ten steps of 0.1 s unless it is said else; or none)
    record b hang=40 message=oh | state a STOPPING (its workers are gone) | state b STARTING alive
    enter a | interrupt a | complete a | advance 30 | away 100 | restart
    account | health | segments | spans round run (these with all there is of them) | events

Agents do only what a story says: to obey is a command too.
"""

from collections.abc import Iterator
from typing import Any

from drumbeat.coordinator.api.documents import document_of
from drumbeat.coordinator.core.model import Hang
from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.observer import account
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.observe.tracing.model import Span
from drumbeat.coordinator.wire.run_status import run_message
from drumbeat.model import GroupState, HangKind
from drumbeat.text.durations import SECOND
from drumbeat.v1 import query_pb2
from tests.support.journal import round_trip
from tests.support.traces import journal_spans
from tests.support.world import START, Story, a_running_story, a_story

STEPS, STEP_S = 10, 0.1  # of a beat of `pace`


class Observed:
    """Plays a story, and shows what is observed of its run."""

    story: Story

    def __init__(self) -> None:
        self._paced: dict[str, tuple[int, float]] = {}  # steps and what they took, by agent

    def play(self, text: str) -> str:
        """Return the commands, each with what it shows."""
        lines = []
        for line in text.splitlines():
            if command := line.partition("#")[0].strip():
                verb, *words = command.split()
                shown = self._do(
                    verb,
                    [word for word in words if "=" not in word],
                    dict(word.split("=", 1) for word in words if "=" in word),
                )
                if shown is not None:
                    lines += [f"> {command}", *(f"    {each}" for each in shown)]
        return "\n".join(lines) + "\n"

    def _do(self, verb: str, words: list[str], options: dict[str, str]) -> Iterator[str] | None:
        match verb:
            case "run" | "wait":
                numbers: dict[str, Any] = {
                    key: int(value) if value.isdigit() else float(value)
                    for key, value in options.items()
                }
                make = a_running_story if verb == "run" else a_story
                self.story = make(*map(int, words), **numbers)
            case "account" | "health" | "segments" | "spans" | "events":
                return getattr(self, f"_{verb}")(*words)  # type: ignore[no-any-return]
            case "train" | "pace" | "advance" | "away" | "restart":
                self._go_on(verb, words, options)
            case "state":
                agent, alive = self.story.agents[words[0]], int("alive" in words)
                agent.state, agent.workers_alive = GroupState[words[1]], alive
                if agent.session_id is not None:
                    self.story.beat(words[0])
            case _:
                for name in words or list(self.story.agents):
                    self._let(verb, name, options)
        return None

    def _go_on(self, verb: str, words: list[str], options: dict[str, str]) -> None:
        """Let time pass."""
        story = self.story
        match verb:
            case "train":
                first, last = words[0].split(":")
                is_silent = first == "none"
                for step in range(0 if is_silent else int(first), int(last)):
                    self._train({} if is_silent else {"step": step})
            case "pace":
                for _ in range(int(words[0])):
                    story.advance(1.0)
                    for name in story.agents:
                        self._pace(name, options.get(name, str(STEP_S)))
            case "advance":
                story.advance(float(words[0]))
            case "away":
                story.now += float(words[0])
            case "restart":
                story.restart()

    def _let(self, verb: str, name: str, options: dict[str, str]) -> None:
        """Let an agent do something."""
        story, given = self.story, dict[str, Any](options)
        match verb:
            case "join":
                if "lws" in given:
                    given["local_world_size"] = int(given.pop("lws"))
                story.join(name, **given)
            case "at":
                self._stand(name, **{key: float(value) for key, value in options.items()})
            case "record":
                if (elapsed := given.pop("hang", None)) is not None:
                    elapsed_s = float(elapsed)
                    given["hang"] = Hang(
                        kind=HangKind.PROGRESS, limit_s=30.0, elapsed_s=elapsed_s, scope="step"
                    )
                story.record(name, **given)
            case _:
                getattr(story, verb)(name)

    def _train(self, place: dict[str, Any]) -> None:
        """Let a second pass, and all agents that can be heard say where they are."""
        self.story.advance(1.0)
        for name, agent in self.story.agents.items():
            if agent.session_id is not None and not agent.is_silent:
                agent.state = GroupState.RUNNING
                self._stand(name, **place)

    def _stand(
        self, name: str, step: float | None = None, age: float = 0, worker: float = 0
    ) -> None:
        agent = self.story.agents[name]
        at = None if step is None else int(step)
        place = WorkerProgress(local_rank=int(worker), step=at, heartbeat_age_s=age)
        if agent.session_id is None:  # it says so when it comes back
            agent.workers = (place,)
            return
        self.story.beat(name, workers=(place,))
        agent.workers = ()

    def _pace(self, name: str, step_s: str) -> None:
        steps, took = self._paced.get(name, (0, 0.0))
        latest = None if step_s == "none" else float(step_s)
        if latest is not None:
            steps, took = steps + STEPS, took + STEPS * latest
        self._paced[name] = steps, took
        place = WorkerProgress(
            local_rank=0,
            step=steps,
            step_time_s=latest,
            heartbeat_age_s=0.0,
            steps_timed=steps,
            steps_s=took,
        )
        self.story.beat(name, GroupState.RUNNING, workers=(place,))

    # What is seen.

    def _ledger(self) -> Ledger:
        run = self.story.run()
        ledger = account(run.state.observed, run.members.observer, now=self.story.now)
        ledger.check_invariants()
        return ledger

    def _account(self) -> Iterator[str]:
        ledger = self._ledger()
        parts = [(part, time) for part, time in ledger.parts.items() if time.run]
        yield ", ".join(f"{part.lower()} {_s(time.run)}" for part, time in parts)
        hosts = ", ".join(f"{part.lower()} {_s(time.hosts)}" for part, time in parts)
        yield f"times hosts: {hosts}"
        for cause in sorted({*ledger.causes, *ledger.restarts}):
            spent = _s(ledger.causes[cause].run) if cause in ledger.causes else 0
            yield f"lost for {cause.lower()}: {spent}, {ledger.restarts.get(cause, 0)} restarts"
        for host, time in ledger.hosts_lost.items():
            yield f"lost by {host}: {_s(time.run)}"
        ratio = "unknown" if ledger.ratio is None else f"{ledger.ratio:.3f}"
        yield f"ratio {ratio}, {ledger.failures} failures, reached step {ledger.reached}"
        yield ledger.line()

    def _health(self) -> Iterator[str]:
        """Show the health, the latest failure, and what the failures have in common."""
        state, story = self.story.state(), self.story
        run = run_message(state, story.run(), query_pb2.VIEW_FULL, now=story.now)
        shown = document_of(run)
        yield f"{shown['health']}: {shown['health_reason']}"
        if shown["last_failure"]:
            latest = shown["last_failure"]
            yield f"last failure {latest['age_s']:g} s ago: {latest['reason']}"
        for group in map(document_of, run.failure_groups):
            yield f"{group['cause']}, {group['count']} times: {group['advice'] or 'no advice'}"
        counts = f"{shown['failed_count']} failures, {shown['lost_count']} lost"
        yield f"{counts}, step {shown['step']}"

    def _segments(self) -> Iterator[str]:
        for each in self._ledger().segments:
            cause = f" for {each.cause.lower()} of {each.host or 'none'}" if each.cause else ""
            place = f"round {each.round_id}, iteration {each.iteration}"
            yield f"{_s(each.time)} {each.part.lower()}{cause}; {place}"

    def _spans(self, *full: str) -> Iterator[str]:
        # As told by a coordinator that is a new one for each record.
        spans = journal_spans(round_trip(self.story.journal), is_handed_over=True)
        names = {span.place: span.name for span in spans}
        for span in spans:
            start = span.start / SECOND - START
            parent = f" in {names.get(span.parent, 'what follows')}" if span.parent else ""
            error = f": {span.error}" if span.error else ""
            yield f"{start:g} +{_s(span.end - span.start)} {_titled(span)}{parent}{error}"
            if span.name in full:
                yield from (f"    {key}: {value}" for key, value in span.attributes.items())
                for link in span.links:
                    yield f"    {link.relation}: {names.get(link.place, 'what follows')}"
                for moment in span.moments:
                    yield f"    {moment.name}:"
                    yield from (f"        {k}: {v}" for k, v in moment.attributes.items())

    def _events(self) -> Iterator[str]:
        for entry in self.story.state().history:
            if entry.decision.startswith("straggler"):
                yield f"{entry.at_s - START:g} {entry.decision}: {entry.reason}"
        yield f"{len(self.story.run().members.observer.slow)} now"


def _titled(span: Span) -> str:
    number = span.attributes.get("drumbeat.iteration.id", span.attributes.get("drumbeat.round.id"))
    return span.name if number is None else f"{span.name} {number}"


def _s(nanoseconds: int) -> str:
    return f"{nanoseconds / SECOND:g}"
