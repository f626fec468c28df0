"""Shell. One registration attempt: opened, used, and thrown away at its first error."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from drumbeat.agent.core import events as ev
from drumbeat.agent.core.effects import OpenSession
from drumbeat.agent.core.model import Beat, DesiredState, Exit
from drumbeat.agent.core.notice import Notice
from drumbeat.agent.core.watchdog.model import HeldReleased, LimitsLearned
from drumbeat.agent.errors import AccessRefused, AgentError, RunEnded, RunRefused, SpecRefused
from drumbeat.agent.lighthouse.relay import QuorumRelay
from drumbeat.agent.session.convert import Identity, beat_message, hello_message
from drumbeat.agent.session.log_answers import LogAnswers
from drumbeat.agent.session.spool import Spool
from drumbeat.agent.session.stack_answers import StackAnswers
from drumbeat.agent.session.transport import Connect, Connection, Reports, TransportError
from drumbeat.agent.session.verdict import complete, is_to_be_completed, read_report
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.command.leader_search import Outcome
from drumbeat.model import NoticeKind, exit_code_of
from drumbeat.tasks import until_one_ends
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping, duration, seconds_of
from drumbeat.wire.messages import DESIRED, DIRECTIVE, FAULT_ORDER, GPU_USE, MEMORY, PACE

log = structlog.get_logger()

# How long a coordinator may take to answer a hello, the network included.
WELCOME_TIMEOUT_S = 15.0

EVIDENCE = "evidence"  # of coordinators that take evidence of all ranks before a worker is killed

_OF_RUN: dict[str, type[SpecRefused | RunRefused]] = {
    "SPEC_MISMATCH": SpecRefused,
    "RUN_CLOSED": RunRefused,
    "INVALID": RunRefused,
}
_OF_CALLER = {
    "UNAUTHENTICATED": "",  # that of the error
    "FORBIDDEN": "`coordinator token create --role join` makes a token for any run, --run-id binds "
    "it to one",
}

NOTICE = MessageMapping(Notice, session_pb2.Notice, parts={"kind": NoticeKind})
ORDERS: dict[str, MessageMapping[Any]] = {
    "notice": NOTICE,
    "end_held": MessageMapping(HeldReleased, session_pb2.EndHeld),
    "fault": FAULT_ORDER,
    "inprocess": DIRECTIVE,
}
"""What is for the workers, by its name in ``drumbeat.v1.Directive``."""


class Session:
    """One stream. Events go to ``on_event`` with the attempt; ``SessionLost`` is the last."""

    def __init__(
        self,
        opening: OpenSession,
        config: AgentConfig,
        identity: Identity,
        on_event: Callable[[ev.Event], None],
        watchdog: Watchdog,
        logs: LogAnswers,
    ) -> None:
        self._opening, self._attempt, self._beat = opening, opening.attempt, opening.beat
        self._config, self._identity, self._watchdog = config, identity, watchdog
        self._on_event = on_event
        self._stacks, self._logs = StackAnswers(config.run_id, identity, watchdog), logs
        self.relay: QuorumRelay | None = None  # of a replica group
        self._observed: tuple[int | None, dict[str, tuple[int, float]]] = (None, {})
        self._sent_pids: tuple[int | None, dict[int, int]] = (None, {})
        self._session_id = ""
        self._goodbye: str | None = None
        self._changed = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._cut_exit = asyncio.Future[session_pb2.DesiredState]()
        self._said_all = asyncio.Event()
        self._passed_over: set[str] = set()

    def send_beat(self, beat: Beat) -> None:
        """Report the actual state; replaces one that was not sent yet."""
        self._beat = beat
        self._changed.set()

    def send_goodbye(self, reason: str) -> None:
        """Leave the run."""
        self._goodbye = reason
        self._changed.set()

    @property
    def is_output_read(self) -> bool:
        """Whether there are readers of the workers' output."""
        return self._logs.is_read

    @property
    def is_open(self) -> bool:
        """Whether the coordinator has let it in, and it has not ended."""
        return self._welcomed.is_set() and not self._said_all.is_set()

    async def said_all(self, *, timeout_s: float) -> None:
        """Return when all output that is read, and a goodbye, were handed over, or in vain."""
        await self._logs.finish(timeout_s=timeout_s)
        if self._goodbye is not None and self._session_id:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._said_all.wait()

    async def run(self, connect: Connect, spool: Spool) -> None:
        """Open the session after a random delay and hold it until it ends."""
        await asyncio.sleep(random.uniform(0, self._opening.delay_max_s))  # noqa: S311 - jitter
        opening, identity = self._opening, self._identity
        connection = connect(opening.address, opening.lost_term)
        verdict = None
        try:
            if not identity.address:  # found once
                identity.address = self._config.local_addr or await connection.address()
            async with asyncio.timeout(WELCOME_TIMEOUT_S) as limit:
                await self._converse(connection, spool, limit)
            error = TransportError("the coordinator ended the session")
        except TransportError as raised:
            error, verdict = raised, await self._missed_verdict(connection, raised)
        except TimeoutError:
            error = TransportError(f"no answer within {WELCOME_TIMEOUT_S:g} s")
        finally:
            self._said_all.set()
            await connection.close()
        lost = ev.SessionLost(
            attempt=self._attempt,
            reason=error.reason,
            hint=error.hint,
            is_stale=error.refusal == "STALE_SESSION",
            refusal=self._final(error),
            verdict=verdict,
            outcome=self._outcome(error),
            leader=error.leader,
        )
        self._on_event(lost)

    async def _missed_verdict(self, connection: Connection, error: TransportError) -> Exit | None:
        """Ask how the run ended, if it failed, or was stopped, after it had given this agent up."""
        refusal = self._final(error)
        if not isinstance(refusal, RunEnded) or not refusal.exit_code:
            return None
        missed = session_pb2.Exit(is_report_cut=True)
        run_id, key = self._config.run_id, self._identity.incarnation_key
        await complete(missed, connection.verdict, run_id=run_id, key=key)
        return None if missed.is_report_cut else _exit_from(missed)

    def _final(self, error: TransportError) -> AgentError | None:
        """Return what ends the agent, if this does.

        One that was admitted before lets no worker end because a message was not understood, nor
        because of files and certificates: they may be in order again within the grace.
        """
        refusal, was_admitted = error.refusal, bool(self._identity.term)
        if refusal in _OF_CALLER:
            return AccessRefused(error.reason, _OF_CALLER[refusal])
        if error.is_final and not was_admitted:
            return AccessRefused(error.reason, error.hint)
        if was_admitted and refusal == "RUN_CLOSED" and error.exit_code is not None:
            return RunEnded(self._config.run_id, error.reason, error.exit_code)
        if refusal in _OF_RUN and not (refusal == "INVALID" and was_admitted):
            return _OF_RUN[refusal](self._config.run_id, error.reason)
        return None

    def _outcome(self, error: TransportError) -> Outcome:
        if error.refusal in ("NOT_LEADER", "DEPOSED"):
            return Outcome.NOT_LEADER
        if error.refusal and error.refusal not in _OF_CALLER:
            return Outcome.REFUSED
        if error.is_silent:
            return Outcome.SILENT
        return Outcome.BROKEN if self._welcomed.is_set() else Outcome.NO_ANSWER

    async def _converse(self, connection: Connection, spool: Spool, limit: asyncio.Timeout) -> None:
        async def deliver() -> None:
            await self._welcomed.wait()
            if not limit.expired():
                limit.reschedule(None)
            await spool.deliver(connection)

        async def show_all() -> None:
            message = await self._cut_exit
            run_id, key = self._config.run_id, self._identity.incarnation_key
            await complete(message.exit, connection.verdict, run_id=run_id, key=key)
            self._take_desired(message)
            await asyncio.get_running_loop().create_future()

        stream = connection.open(self._requests(), partial(self._take, connection))
        answers = [self._stacks.run(connection), self._logs.run(connection)]
        if self.relay is not None:
            answers.append(self._relay(self.relay, connection))
        await until_one_ends(stream, deliver(), show_all(), *answers)

    async def _relay(self, relay: QuorumRelay, connection: Connection) -> None:
        await self._welcomed.wait()
        await relay.run(connection)

    def _take(self, connection: Connection, response: session_pb2.Directive) -> None:
        """Take in what the coordinator says; what this agent does not know is passed over."""
        if response.run_id not in ("", self._config.run_id):
            self._pass_over(f"a directive for run {response.run_id}")
            return
        match kind := response.WhichOneof("kind"):
            case "welcome":
                self._on_welcome(response.welcome)
            case "desired":
                if not is_to_be_completed(response.desired.exit):
                    self._take_desired(response.desired)
                elif not self._cut_exit.done():
                    self._cut_exit.set_result(response.desired)
            case "pace":
                pace = PACE.read(response.pace)
                self._on_event(ev.SessionWelcomed(attempt=self._attempt, pace=pace))
            case "limits":
                limits = {item.section: seconds_of(item.limit) for item in response.limits.limits}
                self._watchdog.feed(LimitsLearned(limits=limits))
            case "inprocess" | "notice" | "end_held" | "fault":
                self._take_order(kind, getattr(response, kind))
            case "collect":
                self._stacks.asked(response.collect)
            case "logs":
                self._logs.asked(response.logs)
            case "authorities":
                connection.trust(response.authorities.keys)
            case _:
                self._pass_over("a kind of directive")

    def _take_order(self, kind: str, message: Any) -> None:
        try:
            order = ORDERS[kind].read(message)
        except InvalidField:
            self._pass_over("what workers shall do in an iteration")
        else:
            self._on_event(ev.OrderReceived(attempt=self._attempt, order=order))

    def _take_desired(self, message: session_pb2.DesiredState) -> None:
        state, spent = desired_from(message), message.master_port_spent
        if state is None:
            self._pass_over("a kind of desired state")
        else:
            attempt = self._attempt
            event = ev.DirectiveReceived(attempt=attempt, state=state, master_port_spent=spent)
            self._on_event(event)

    def _on_welcome(self, welcome: session_pb2.Welcome) -> None:
        term = welcome.term or 1
        if term < self._identity.term:
            terms = f"term {term}, after one of term {self._identity.term}"
            raise TransportError(f"this coordinator is no longer the leader: {terms}", "DEPOSED")
        self._identity.term = term
        self._session_id = welcome.session_id
        pace = PACE.read(welcome.pace)
        self._on_event(
            ev.SessionWelcomed(
                attempt=self._attempt,
                pace=pace,
                term=term,
                takes_evidence=EVIDENCE in welcome.features,
                name=welcome.name,
            )
        )
        self._welcomed.set()

    async def _requests(self) -> Reports:
        hello = hello_message(self._config, self._identity, self._beat_message())
        yield self._report(hello=hello)
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield self._report(beat=self._beat_message())
            if self._goodbye is not None and not self._said_all.is_set():
                yield self._report(goodbye=session_pb2.Goodbye(reason=self._goodbye))
                self._said_all.set()  # but that its workers have ended

    def _beat_message(self) -> session_pb2.Beat:
        """Write the beat, and where the workers of its round stand and what they use now."""
        round_id, now = self._beat.round_id, time.monotonic()
        observed = (round_id, dict(self._watchdog.observations(round_id)))
        is_news, self._observed = observed != self._observed, observed
        message = beat_message(
            self._beat,
            standings=self._watchdog.standings(round_id),
            observations=observed[1] if is_news else {},
            pids=self._pids_to_tell(round_id),
            now=now,
            host=self._identity.host,
        )
        memory = self._watchdog.memory.read(round_id, self._watchdog.pids(round_id), now=now)
        if memory.workers:
            message.memory.CopyFrom(MEMORY.write(memory))
        if (gpus := self._watchdog.gpus.news(now=now)) is not None:
            message.gpus.CopyFrom(GPU_USE.write(gpus))
        for local_rank, rank, reason in self._watchdog.suspects(round_id):
            message.accusations.add(local_rank=local_rank, rank=rank, reason=reason)
        message.log_dir = self._logs.log_dir
        if moved_s := self._watchdog.collectives_moved_s(round_id):
            message.collectives_moved.CopyFrom(duration(moved_s))
        return message

    def _pids_to_tell(self, round_id: int | None) -> Sequence[int]:
        """Return the workers' processes by local rank if that is news in this session."""
        sent_of, sent = self._sent_pids
        known = (sent if sent_of == round_id else {}) | self._watchdog.pids(round_id)
        if not known or (round_id, known) == self._sent_pids:
            return ()
        self._sent_pids = round_id, known
        return [known.get(local_rank, 0) for local_rank in range(max(known) + 1)]

    def _report(self, **kind: Any) -> session_pb2.AgentReport:
        fence = common_pb2.Fence(
            run_id=self._config.run_id,
            round_id=self._beat.round_id,
            incarnation=self._identity.incarnation,
            session_id=self._session_id,
        )
        uptime = duration(time.monotonic() - self._identity.began_at)
        return session_pb2.AgentReport(fence=fence, uptime=uptime, **kind)

    def _pass_over(self, what: str) -> None:
        """Say once that a newer coordinator wants what this agent does not know."""
        if what not in self._passed_over:
            self._passed_over.add(what)
            log.warning("directive not understood", reason=f"this agent does not know {what}")


def _cause_name(cause: int) -> str:
    """Return the name of a verdict's cause; nothing for one of a later version."""
    known = failure_pb2.VerdictCause.DESCRIPTOR.values_by_number.get(cause)
    return "" if known is None else known.name.removeprefix("VERDICT_CAUSE_")


def desired_from(message: session_pb2.DesiredState) -> DesiredState | None:
    """Read a desired state; ``None`` if it is of a kind this agent does not know."""
    kind = message.WhichOneof("kind")
    if kind == "exit":
        return _exit_from(message.exit)
    if kind == "release":
        return Exit(
            is_success=True,
            reason=message.release.reason,
            is_released=True,
            is_drained=message.release.is_drained,
        )
    return None if kind is None else DESIRED[kind].read(getattr(message, kind))


def _exit_from(message: session_pb2.Exit) -> Exit:
    verdict = message.verdict
    is_stopped = verdict.cause == failure_pb2.VERDICT_CAUSE_STOPPED
    return Exit(
        is_success=verdict.is_success,
        reason=verdict.reason,
        report=None if verdict.is_success or is_stopped else read_report(message),
        is_stopped=is_stopped,
        exit_code=exit_code_of(_cause_name(verdict.cause)),
        cause="" if verdict.is_success else _cause_name(verdict.cause),
    )
