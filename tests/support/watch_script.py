"""Stories of the watchdog's core as text: a line is a command, and what follows is indented below.

    watch ranks=0,1 kill_grace_s=3.25    the workers, and fields of the policy; the first command
    watch silent                         the test answers itself what the core asks for
    kick rank=1 step=7 beat=2 timer 3 name=save limit=4 signal=10 section 4 limit=auto
                                         a worker writes all this on its board, and asks for a look
    write ...                            the same without asking; `kick none`: it has no board
    write timer -2 name=loss limit=4 since=3 purpose=OUTPUT
                                         a line of its output has matched a hang pattern at 3
    kick fatal='CUDA error'              its output has a line that a fatal pattern matches
    beat 3                               only the sign of life of its runtime, without asking
    acquire a 2.5 signal=0 pid=78        a timer by a call; also `release a`, `heartbeat step=5`
    learn heartbeats=20 save=60          limits of the run
    judge on | release-held 1 round=0    what the coordinator does
    collectives 5 waiting                how far its process groups are when it is asked from now on
    evidence stopped notes=x             what is seen of a worker from now on; `evidence default`
    silent | answering                   whether that, and boards, come at once
    taken ...                            evidence comes now, as in `evidence`
    start rank=1 round=1 | gone          workers come and go
    run 4                                time passes until then, always punctual
    sleep 4                              the watchdog stands still until then, and wakes up
    now 4 | wake                         the two halves of it
    show standing | observed | evidence | room | deadline
                                         what others may ask the core

With `watch looks` announcements and readings are written, too, and stacks that are asked for and
come at once; with `watch exceeded` which limits are exceeded, as the coordinator is told.

Times are seconds since the beginning. Worker 0 of round 0 is meant unless a line says otherwise.
"""

import shlex
from typing import Any

from msgspec.structs import asdict, replace

from drumbeat.agent.core.watchdog import model as fx
from drumbeat.agent.core.watchdog.watchdog import WatchdogCore
from drumbeat.agent.core.watchdog.worker import merged
from drumbeat.agent.model.hang import HangEvidence, Purpose, WorkerProgress

NOW = 1000.0
WORKER = fx.WorkerKey(0, 0)
TAKEN = HangEvidence(stacks="File a.py")  # unless a story says otherwise
INSTANTS = {
    "beat": "beat_at",
    "exiting": "exiting_at",
    "progress": "progress_since",
    "heartbeat": "heartbeat_at",
}
NAMES = {"stack-signal": "stack_signal", "debugged": "is_debugged"} | INSTANTS


class WatchScript:
    """Plays one story."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._now = NOW
        self._core = WatchdogCore(fx.WatchdogPolicy())
        self._is_answering = True
        self._has_looks = self._has_exceeded = False
        self._boards: dict[fx.WorkerKey, fx.Snapshot | None] = {}
        self._evidence: dict[fx.WorkerKey, HangEvidence] = {}
        self._exceeded: tuple[fx.Exceeded, ...] = ()
        self._collectives: dict[fx.WorkerKey, fx.CollectivesRead] = {}

    def play(self, text: str) -> str:
        """Return the commands, each with what came of it."""
        for line in text.splitlines():
            if line and not line.startswith(" "):
                self.lines.append(line)
                if not line.startswith("#"):
                    self._command(line)
        return "".join(f"{line}\n" for line in self.lines)

    def _command(self, line: str) -> None:
        (verb, *words), *slots = parts_of(line)
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        key = fx.WorkerKey(int(fields.pop("round", 0)), int(fields.pop("rank", 0)))
        match verb:
            case "watch":
                self._watch(words, fields)
            case "kick" | "write":
                board = None if "none" in words else a_board(words, fields, slots)
                self._boards[key] = board
                if verb == "kick":
                    self._feed(fx.BoardRead(worker=key, snapshot=board))
            case "beat":
                board = self._boards[key] or fx.Snapshot(owner_pid=77)
                self._boards[key] = replace(board, beat_at=NOW + float(words[0]))
            case "evidence":
                self._evidence[key] = evidence_of(words, fields)
            case "collectives":
                progress = None if words[0] == "none" else int(words[0])
                self._collectives[key] = fx.CollectivesRead(
                    worker=key, progress=progress, is_waiting="waiting" in words
                )
            case "silent" | "answering":
                self._is_answering = verb == "answering"
            case "run":
                self._run(NOW + float(words[0]))
            case "sleep" | "now":
                self._now = NOW + float(words[0])
                if verb == "sleep":
                    self._feed(fx.DeadlineReached())
            case "show":
                self._show(words[0], key)
            case _:
                self._feed(event_of(verb, words, fields, key))

    def _watch(self, words: list[str], fields: dict[str, str]) -> None:
        self._is_answering = "silent" not in words
        self._has_looks, self._has_exceeded = "looks" in words, "exceeded" in words
        ranks = fields.pop("ranks", "0").split(",")
        policy: dict[str, Any] = {name: value_of(value) for name, value in fields.items()}
        self._core = WatchdogCore(fx.WatchdogPolicy(**policy))
        for rank in ranks:
            self._feed(fx.WorkerStarted(worker=fx.WorkerKey(0, int(rank))))

    def _run(self, until: float) -> None:
        while (due := self._core.next_deadline()) is not None and due <= until:
            self._now = max(self._now, due)
            self._feed(fx.DeadlineReached())
        self._now = until

    def _feed(self, event: fx.Event) -> None:
        effects = self._core.handle(event, now=self._now)
        self._core.check_invariants()
        for effect in effects:
            if text := self._described(effect):
                self._say(text + of(effect.worker))
        for effect in effects if self._is_answering else ():
            match effect:
                case fx.ReadBoard(worker=worker):
                    board = self._boards.get(worker)
                    self._feed(fx.BoardRead(worker=worker, snapshot=board))
                case fx.ReadCollectives(worker=worker) if worker in self._collectives:
                    self._feed(self._collectives[worker])
                case fx.TakeEvidence(worker=worker):
                    evidence = self._evidence.get(worker, TAKEN)
                    self._feed(fx.EvidenceTaken(worker=worker, evidence=evidence))
                case _:
                    pass
        self._tell_exceeded()

    def _say(self, text: str) -> None:
        self.lines.append(f"    {self._now - NOW:g}  {text}".rstrip())

    def _described(self, effect: fx.Effect) -> str:
        text = ""
        match effect:
            case fx.AnnounceLook(look_at=look_at) if self._has_looks:
                text = f"look announced for {look_at - NOW:g}"
            case fx.ReadBoard() if self._has_looks:
                text = "board read"
            case fx.TakeEvidence() if not self._is_usual(effect):
                how = "a signal" if effect.is_by_signal else "a question"
                text = f"stacks asked for by {how} within {effect.timeout_s:g} s{of_pid(effect)}"
            case fx.Signal():
                text = f"signal {effect.signum}{of_pid(effect)}"
            case fx.TellUnkilled():
                text = f"not dead {effect.after_s:g} s after SIGKILL"
            case fx.EndForLine(line=line):
                text = f"{line.line!r} matches {line.pattern!r}, ends it"
            case fx.Warn():
                text = f"{effect.event}: {effect.reason}"
            case fx.Report():
                text = described_report(effect)
        return text

    def _is_usual(self, effect: fx.TakeEvidence) -> bool:
        """Return whether a worker is asked and answers at once, as in most stories."""
        is_special = effect.is_by_signal or effect.pid or self._has_looks
        return self._is_answering and not is_special

    def _tell_exceeded(self) -> None:
        exceeded = self._core.exceeded() if self._has_exceeded else ()
        if exceeded != self._exceeded:
            self._exceeded = exceeded
            limits = (
                f"{each.number} {each.kind} {each.scope!r}{' held' if each.is_held else ''}"
                + of(each.worker)
                for each in exceeded
            )
            self._say(f"exceeded now: {', '.join(limits) or 'nothing'}")

    def _show(self, what: str, key: fx.WorkerKey) -> None:
        worker = self._core.workers.get(key)
        match what:
            case "standing" if worker is not None:
                self._say(f"standing: {fields_of(worker.standing(), WorkerProgress(local_rank=0))}")
            case "observed":
                workers = self._core.workers.values()
                self._say(f"observed: {merged(worker.observed() for worker in workers)}")
            case "evidence" if worker is not None:
                held = worker.evidence_held()
                self._say(f"evidence held: {held and fields_of(held, HangEvidence())}")
            case "room" if worker is not None:
                self._say(f"room for another timer: {worker.may_acquire('another')}")
            case "deadline":
                due = self._core.next_deadline()
                self._say(f"next deadline: {None if due is None else f'{due - NOW:g}'}")
            case _:
                raise ValueError(f"show {what}: not known, or the worker is not watched")


def parts_of(line: str) -> list[list[str]]:
    """Return the words of a command, and those of each slot that it opens."""
    parts: list[list[str]] = [[]]
    for word in shlex.split(line):
        if word in ("timer", "section"):
            parts.append([])
        parts[-1].append(word)
    return parts


def a_board(words: list[str], fields: dict[str, str], slots: list[list[str]]) -> fx.Snapshot:
    """Return the board of a process."""
    board: dict[str, Any] = {NAMES[word]: True for word in words if word in NAMES}
    if (line := fields.pop("fatal", "")) != "":
        board["fatal_line"] = fx.FatalLine(pattern="error", line=line, at=NOW)
    for name, value in fields.items():
        instant = NOW if name in INSTANTS else 0
        board[NAMES.get(name, name)] = instant + number_of(value)
    return fx.Snapshot(owner_pid=77, slots=tuple(map(a_slot, slots)), **board)


def a_slot(words: list[str]) -> fx.Slot:
    """Return what is open: a timer, or a section."""
    kind, number, *rest = words
    fields = dict(word.split("=", 1) for word in rest)
    since = NOW + float(fields.get("since", 0))
    limit = value_of(fields.get("limit", "10"))
    deadline = since + limit if isinstance(limit, float) else None
    if "deadline" in fields:
        deadline = NOW + float(fields["deadline"])
    return fx.Slot(
        slot=int(number),
        name=fields.get("name", f"timer {number}"),
        is_section=kind == "section",
        since=since,
        deadline=deadline,
        limit_s=limit,
        signal=int(fields["signal"]) if "signal" in fields else None,
        grace_s=float(fields["grace"]) if "grace" in fields else None,
        purpose=Purpose(fields.get("purpose", "USER")),
    )


def event_of(verb: str, words: list[str], fields: dict[str, str], key: fx.WorkerKey) -> fx.Event:
    """Return the event that a command stands for."""
    event: fx.Event
    match verb, words:
        case "start", _:
            event = fx.WorkerStarted(worker=key)
        case "gone", _:
            event = fx.WorkerGone(worker=key)
        case "acquire", (scope, timeout):
            event = fx.TimerAcquired(
                worker=key,
                scope=scope,
                timeout_s=float(timeout),
                signal=int(fields["signal"]) if "signal" in fields else None,
                pid=int(fields.get("pid", 0)),
            )
        case "release", (scope,):
            event = fx.TimerReleased(worker=key, scope=scope)
        case "heartbeat", _:
            step = int(fields["step"]) if "step" in fields else None
            event = fx.HeartbeatReceived(worker=key, step=step)
        case "taken", _:
            event = fx.EvidenceTaken(worker=key, evidence=evidence_of(words, fields))
        case "learn", _:
            limits = {name: float(value) for name, value in fields.items()}
            if "heartbeats" in limits:
                limits[""] = limits.pop("heartbeats")
            event = fx.LimitsLearned(limits=limits)
        case "judge", (word,):
            event = fx.JudgeKnown(is_there=word == "on")
        case "release-held", (number,):
            event = fx.HeldReleased(round_id=key.round_id, number=int(number))
        case "wake", _:
            event = fx.DeadlineReached()
        case _:
            raise ValueError(f"{verb} {words}: not known")
    return event


def evidence_of(words: list[str], fields: dict[str, str]) -> HangEvidence:
    """Return what is seen of a worker."""
    if "default" in words:
        return TAKEN
    return HangEvidence(
        **fields,
        is_traced="traced" in words,
        is_stopped="stopped" in words,
        is_alive="dead" not in words,
    )


def described_report(report: fx.Report) -> str:
    """Say what was over, and what becomes of the worker."""
    hang = report.hang
    what = "ends it" if report.is_ending else "is only reported"
    details = [
        f"in {hang.standing.scope!r}" if hang.standing.scope not in ("", hang.scope) else "",
        f"at step {hang.standing.step}" if hang.standing.step is not None else "",
        str(hang.purpose) if hang.purpose is not Purpose.USER else "",
        fields_of(hang.evidence, TAKEN),
    ]
    times = f"{hang.elapsed_s:g} of {hang.limit_s:g} s"
    how = "".join(f", {detail}" for detail in details if detail)
    what = report.aftermath or what
    return f"{hang.kind} {hang.scope!r}, {times}, {what}{of_pid(report)}{how}"


def fields_of(value: Any, usual: Any) -> str:
    """Write the fields that are not as usual; instants count from the beginning."""
    instants = {"heartbeat_at", "progress_since", "beat_at", "scope_since"}
    return " ".join(
        f"{name}={field - NOW if name in instants and field is not None else field!r}"
        for name, field in asdict(value).items()
        if field != getattr(usual, name)
    )


def of(worker: fx.WorkerKey | None) -> str:
    """Write which worker it is, unless it is the usual one."""
    if worker is None or worker == WORKER:
        return ""
    return f" (rank {worker.local_rank} of round {worker.round_id})"


def of_pid(effect: fx.Report | fx.Signal | fx.TakeEvidence) -> str:
    """Write of which process below the worker it is."""
    return f" (process {effect.pid})" if effect.pid else ""


def value_of(text: str) -> Any:
    """Read a field of a policy, or a limit."""
    if text in ("auto", "report"):
        return text
    if text in ("None", "none"):
        return None
    return text == "True" if text in ("True", "False") else float(text)


def number_of(text: str) -> float | int:
    """Read a number of a board: whole ones are counts."""
    return int(text) if text.lstrip("-").isdecimal() else float(text)
