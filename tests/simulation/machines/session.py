"""The agent's end of a session and of its failure stream, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumbeat.agent.core.events import (
    DirectiveReceived,
    OrderReceived,
    SessionLost,
    SessionWelcomed,
)
from drumbeat.agent.errors import AgentError, RunRefused, SpecRefused
from drumbeat.agent.session import convert
from drumbeat.agent.session.session import (
    NOTICE,
    WELCOME_TIMEOUT_S,
    desired_from,
)
from drumbeat.command.leader_search import Outcome
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import duration
from drumbeat.wire.messages import DIRECTIVE, FAULT_ORDER, PACE
from tests.simulation.machines.network import SILENT, End
from tests.simulation.machines.versions import newer

if TYPE_CHECKING:
    from drumbeat.agent.core import effects as fx
    from drumbeat.agent.core.model import Beat
    from tests.simulation.machines.host import Agent
    from tests.simulation.machines.network import Link

RUN = "run"
RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A failure record on the host's disk."""

    incarnation: str
    happened_at: float
    record: failure_pb2.FailureRecord

    @property
    def key(self) -> tuple[str, int]:
        """What identifies the record everywhere."""
        return self.incarnation, self.record.sequence


class SimSession:
    """One attempt. Its end is told once."""

    def __init__(self, agent: Agent, opened: fx.OpenSession) -> None:
        self._agent, self._opened = agent, opened
        self._attempt, self._beat = opened.attempt, opened.beat
        self._clock = agent.clock
        self._random = agent.clock.random(f"{agent.name} session {opened.attempt}")
        self._link: Link | None = None
        self._session_id = ""
        self._term = 0
        self._goodbye: str | None = None
        self._has_left = False
        self._is_over = False
        self._is_changed = False
        self._sent: set[tuple[str, int]] = set()
        self._has_stream = True
        self._after(self._random.uniform(0, opened.delay_max_s), self._connect)

    def _after(self, delay_s: float, action: object) -> None:
        def act() -> None:
            if not self._is_over:
                action()  # type: ignore[operator]

        self._clock.after(delay_s, self._agent.actor, act)

    def _connect(self) -> None:
        host, network = self._agent.host, self._agent.host.head.network
        head = self._agent.host.head.at(self._opened.address)
        self._after(WELCOME_TIMEOUT_S, self._on_timeout)
        if network.is_blocked(host.name, head.name):
            return  # nothing ever answers
        if (process := head.process) is None:
            self._after(self._random.uniform(0.0005, 0.01), lambda: self._lost("refused"))
            return
        self._link = network.connect(host.name, process)
        self._link.down.into(self._agent.actor, self._on_down)
        self._link.acks.into(self._agent.actor, self._on_ack)
        process.open(self._link, self._opened.lost_term)
        self._send(self.hello())
        self._say()

    def hello(self) -> session_pb2.AgentReport:
        """Return its first message."""
        host = self._agent.host
        identity = convert.Identity(
            incarnation="", host=host.name, address=host.address, term=self._agent.term
        )
        hello = convert.hello_message(host.config, identity, self._beat_message())
        return session_pb2.AgentReport(fence=self._fence(), hello=hello)

    def _send(self, message: session_pb2.AgentReport) -> None:
        host = self._agent.host
        if (uptime_s := host.progress.uptime_s(self._clock.now)) is not None:
            message.uptime.CopyFrom(duration(uptime_s))
        if self._link is not None:
            self._link.up.send(newer(message) if host.is_newer else message)

    def send_beat(self, beat: Beat) -> None:
        """Report the actual state; replaces one that was not sent yet."""
        self._beat = beat
        self._is_changed = True
        self._after(self._random.uniform(0, 0.001), self._say)

    def send_goodbye(self, reason: str) -> None:
        """Leave the run."""
        self._goodbye = reason
        self._after(self._random.uniform(0, 0.001), self._say)

    def _say(self) -> None:
        if self._link is None:
            return
        if self._is_changed:
            self._is_changed = False
            beat = self._beat_message()
            self._send(session_pb2.AgentReport(fence=self._fence(), beat=beat))
        if self._goodbye is not None and not self._has_left:
            self._has_left = True
            goodbye = session_pb2.Goodbye(reason=self._goodbye)
            self._send(session_pb2.AgentReport(fence=self._fence(), goodbye=goodbye))

    def _beat_message(self) -> session_pb2.Beat:
        host, now = self._agent.host, self._clock.now
        standings = host.progress.standings(self._agent, self._beat)
        return convert.beat_message(self._beat, standings=standings, now=now, host=host.name)

    def _on_timeout(self) -> None:
        if not self._session_id:
            self._lost("no answer in time")

    def _on_down(self, message: session_pb2.Directive | End) -> None:
        if self._is_over:
            return
        if isinstance(message, End):
            self._lost(message.reason, message.refusal, message.leader)
            return
        agent = self._agent
        match message.WhichOneof("kind"):
            case "welcome":
                self._term = term = message.welcome.term
                if term < agent.term:
                    self._lost(f"of term {term}, after one of term {agent.term}", "DEPOSED")
                    return
                agent.term = term
                self._session_id = message.welcome.session_id
                pace = PACE.read(message.welcome.pace)
                agent.submit(SessionWelcomed(attempt=self._attempt, pace=pace, term=term))
                self.send_records()
            case "desired":
                desired, spent = message.desired, message.desired.master_port_spent
                state = desired_from(desired)
                assert state is not None, message
                assert self._term == agent.term, "a directive of an older term"
                agent.submit(
                    DirectiveReceived(attempt=self._attempt, state=state, master_port_spent=spent)
                )
            case "inprocess":
                agent.submit(self._order(DIRECTIVE.read(message.inprocess)))
            case "notice":
                agent.submit(self._order(NOTICE.read(message.notice)))
            case "fault":
                agent.submit(self._order(FAULT_ORDER.read(message.fault)))
            case "pace":
                pace = PACE.read(message.pace)
                agent.submit(SessionWelcomed(attempt=self._attempt, pace=pace))

    def _order(self, order: Any) -> OrderReceived:
        return OrderReceived(attempt=self._attempt, order=order)

    def _lost(self, reason: str, refusal: str = "", leader: str = "") -> None:
        is_welcomed = bool(self._session_id)
        self.close(is_lossy=self._random.random() < 0.5)
        self._agent.submit(
            SessionLost(
                attempt=self._attempt,
                reason=reason,
                is_stale=refusal == "STALE_SESSION",
                refusal=_final(refusal, reason),
                outcome=_outcome(reason, refusal, is_welcomed=is_welcomed),
                leader=leader,
            )
        )

    def close(self, *, is_lossy: bool) -> None:
        """End it from this side."""
        if not self._is_over:
            self._say()
            self._is_over = True
            if self._link is not None:
                self._link.leave(is_lossy=is_lossy)

    def _fence(self) -> common_pb2.Fence:
        return common_pb2.Fence(
            run_id=RUN,
            round_id=self._beat.round_id,
            incarnation=self._agent.name,
            session_id=self._session_id,
        )

    # Failure records.

    def send_records(self) -> None:
        """Send what this stream has not carried yet, oldest first."""
        if self._is_over or not self._session_id or not self._has_stream or self._link is None:
            return
        for spooled in self._agent.pending:
            if spooled.key not in self._sent:
                if not self._sent:
                    self._link.records.send(End("another stream begins"))
                self._sent.add(spooled.key)
                record = failure_pb2.FailureRecord()
                record.CopyFrom(spooled.record)
                age = max(0.0, self._clock.now - spooled.happened_at)
                record.age.CopyFrom(duration(age))
                self._link.records.send(session_pb2.ReportFailuresRequest(record=record))

    def break_records(self) -> None:
        """The failure stream breaks, and with it acknowledgements in flight."""
        if self._link is None or self._is_over or not self._has_stream:
            return
        self._has_stream = False
        if self._random.random() < 0.5:
            self._link.records.lose_all()
        self._link.acks.lose_all()
        self._clock.note(self._agent.name, "LOSES ITS FAILURE STREAM")

        def again() -> None:
            self._has_stream = True
            self._sent.clear()
            self.send_records()

        self._after(RETRY_S, again)

    def _on_ack(self, message: session_pb2.ReportFailuresResponse | End) -> None:
        if isinstance(message, End):
            self.break_records()
            return
        key = (message.incarnation, message.sequence)
        self._agent.pending = [kept for kept in self._agent.pending if kept.key != key]


def _outcome(reason: str, refusal: str, *, is_welcomed: bool) -> Outcome:
    if refusal in {"NOT_LEADER", "DEPOSED"}:
        return Outcome.NOT_LEADER
    if refusal:
        return Outcome.REFUSED
    return Outcome.BROKEN if is_welcomed and reason != SILENT else Outcome.NO_ANSWER


def _final(refusal: str, reason: str) -> AgentError | None:
    if refusal == "SPEC_MISMATCH":
        return SpecRefused(RUN, reason)
    return RunRefused(RUN, reason) if refusal in {"RUN_CLOSED", "INVALID"} else None
