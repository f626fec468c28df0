"""Shell. One registration attempt: opened, used, and thrown away at its first error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

import structlog
from google.protobuf.duration_pb2 import Duration

from agent.core.events import (
    DirectiveReceived,
    Event,
    InprocessDirected,
    SessionLost,
    SessionWelcomed,
)
from agent.core.model import Beat
from agent.errors import AgentError, RunRefused, SpecRefused
from agent.session import convert
from agent.session.convert_inprocess import directive_from
from agent.session.reporter import Reporter
from agent.session.transport import Connection, Transport, TransportError
from agent.settings.config import AgentConfig
from agent.watchdog.hang import Standing
from agent.workers.devices.gpus import Gpu
from agent.workers.failures.verdict import complete, is_to_be_completed
from drumbeat.mapping import duration
from drumbeat.tasks import until_one_ends
from drumbeat.v1 import common_pb2, session_pb2

log = structlog.get_logger()

# How long a coordinator may take to answer a hello, the network included.
WELCOME_TIMEOUT_S = 15.0

_FINAL_REFUSALS: dict[str, type[SpecRefused | RunRefused]] = {
    "SPEC_MISMATCH": SpecRefused,
    "RUN_CLOSED": RunRefused,
    "INVALID": RunRefused,
}


@dataclass(slots=True, kw_only=True)
class Identity:
    """Who this agent is to the coordinator, for the life of the process.

    ``began_at`` is the instant from which its uptime counts, monotonic seconds; ``term`` the
    highest of a coordinator that has welcomed it, 0 before.
    """

    incarnation: str
    host: str
    address: str
    began_at: float
    gpus: tuple[Gpu, ...] = ()
    term: int = 0


class WorkersSeen(Protocol):
    """What the watchdog knows of the workers, and wants to know of the run."""

    def standings(self, round_id: int | None) -> list[Standing]:
        """Return where the workers of a round stand."""
        ...

    def observations(self, round_id: int | None) -> Mapping[str, tuple[int, float]]:
        """Return how many times each thing took, and the longest."""
        ...

    def learned(self, limits: Mapping[str, float]) -> None:
        """Take what the run has learned."""
        ...


class Session:
    """One stream. Events go to ``on_event`` with ``attempt``; ``SessionLost`` is the last."""

    def __init__(
        self,
        *,
        attempt: int,
        config: AgentConfig,
        identity: Identity,
        beat: Beat,
        on_event: Callable[[Event], None],
        watchdog: WorkersSeen,
    ) -> None:
        self._attempt = attempt
        self._config = config
        self._identity = identity
        self._beat = beat
        self._on_event = on_event
        self._watchdog = watchdog
        self._observed: tuple[int | None, dict[str, tuple[int, float]]] = (None, {})
        self._session_id = ""
        self._goodbye: str | None = None
        self._changed = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._cut_exit: asyncio.Future[session_pb2.DesiredState]
        self._cut_exit = asyncio.get_running_loop().create_future()
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

    async def said_all(self, *, timeout_s: float) -> None:
        """Return when a goodbye, if there is one, was handed to the network, or in vain."""
        if self._goodbye is not None and self._session_id:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._said_all.wait()

    async def run(
        self, transport: Transport, reporter: Reporter, *, delay_max_s: float, random: Random
    ) -> None:
        """Open the session after a random delay and hold it until it ends."""
        await asyncio.sleep(random.uniform(0, delay_max_s))
        connection = transport.connect()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S) as limit:
                await self._converse(connection, reporter, limit)
            reason, refusal = "the coordinator ended the session", ""
        except TransportError as error:
            reason, refusal = error.reason, error.refusal
        except TimeoutError:
            reason, refusal = f"no answer within {WELCOME_TIMEOUT_S:g} s", ""
        finally:
            self._said_all.set()
            await connection.close()
        self._on_event(
            SessionLost(
                attempt=self._attempt,
                reason=reason,
                is_stale=refusal == "STALE_SESSION",
                refusal=self._final(refusal, reason),
            )
        )

    async def _converse(
        self, connection: Connection, reporter: Reporter, limit: asyncio.Timeout
    ) -> None:
        async def deliver() -> None:
            await self._welcomed.wait()
            if not limit.expired():
                limit.reschedule(None)
            await reporter.deliver(connection)

        async def show_all() -> None:
            message = await self._cut_exit
            await complete(message.exit, connection, run_id=self._config.run_id)
            self._take_desired(message)
            await asyncio.get_running_loop().create_future()

        stream = connection.open(self._requests(), self._take)
        await until_one_ends(stream, deliver(), show_all())

    def _take(self, response: session_pb2.Directive) -> None:
        """Take in what the coordinator says; what this agent does not know is passed over."""
        if response.run_id not in ("", self._config.run_id):
            self._pass_over(f"a directive for run {response.run_id}")
            return
        match response.WhichOneof("kind"):
            case "welcome":
                self._on_welcome(response.welcome)
            case "desired":
                if not is_to_be_completed(response.desired.exit):
                    self._take_desired(response.desired)
                elif not self._cut_exit.done():
                    self._cut_exit.set_result(response.desired)
            case "pace":
                pace = convert.pace_from(response.pace)
                self._on_event(SessionWelcomed(attempt=self._attempt, pace=pace))
            case "limits":
                self._watchdog.learned(convert.limits_from(response.limits))
            case "inprocess":
                directive = directive_from(response.inprocess)
                if directive is not None:
                    self._on_event(InprocessDirected(attempt=self._attempt, directive=directive))
                else:
                    self._pass_over("what workers shall do in an iteration")
            case _:
                self._pass_over("a kind of directive")

    def _take_desired(self, message: session_pb2.DesiredState) -> None:
        state = convert.desired_from(message)
        if state is None:
            self._pass_over("a kind of desired state")
        else:
            spent = message.master_port_spent
            self._on_event(
                DirectiveReceived(attempt=self._attempt, state=state, master_port_spent=spent)
            )

    def _on_welcome(self, welcome: session_pb2.Welcome) -> None:
        term = welcome.term or 1
        if term < self._identity.term:
            terms = f"term {term}, after one of term {self._identity.term}"
            raise TransportError(f"a coordinator answers that was deposed: {terms}", "DEPOSED")
        self._identity.term = term
        self._session_id = welcome.session_id
        pace = convert.pace_from(welcome.pace)
        self._on_event(SessionWelcomed(attempt=self._attempt, pace=pace))
        self._welcomed.set()

    async def _requests(self) -> AsyncGenerator[session_pb2.AgentReport, None]:
        identity = self._identity
        hello = convert.hello_message(
            self._config,
            self._beat_message(),
            host=identity.host,
            address=identity.address,
            term=identity.term,
            gpus=identity.gpus,
        )
        yield session_pb2.AgentReport(fence=self._fence(), uptime=self._uptime(), hello=hello)
        while self._goodbye is None:
            await self._changed.wait()
            self._changed.clear()
            beat = self._beat_message()
            yield session_pb2.AgentReport(fence=self._fence(), uptime=self._uptime(), beat=beat)
        goodbye = session_pb2.Goodbye(reason=self._goodbye)
        yield session_pb2.AgentReport(fence=self._fence(), goodbye=goodbye)
        self._said_all.set()

    def _beat_message(self) -> session_pb2.Beat:
        """Write the beat, and where the workers of its round stand at this moment."""
        round_id = self._beat.round_id
        standings = self._watchdog.standings(round_id)
        observed = (round_id, dict(self._watchdog.observations(round_id)))
        is_news, self._observed = observed != self._observed, observed
        return convert.beat_message(
            self._beat,
            standings=standings,
            observations=observed[1] if is_news else {},
            now=time.monotonic(),
            host=self._identity.host,
        )

    def _uptime(self) -> Duration:
        return duration(time.monotonic() - self._identity.began_at)

    def _fence(self) -> common_pb2.Fence:
        return common_pb2.Fence(
            run_id=self._config.run_id,
            round_id=self._beat.round_id,
            incarnation=self._identity.incarnation,
            session_id=self._session_id,
        )

    def _pass_over(self, what: str) -> None:
        """Say once that a newer coordinator wants what this agent does not know."""
        if what not in self._passed_over:
            self._passed_over.add(what)
            log.warning("directive not understood", reason=f"this agent does not know {what}")

    def _final(self, refusal: str, reason: str) -> AgentError | None:
        """Return why the agent gives up, if it has to.

        One that was admitted before lets no worker end because a message was not understood.
        """
        if refusal == "INVALID" and self._identity.term:
            return None
        kind = _FINAL_REFUSALS.get(refusal)
        return kind(self._config.run_id, reason) if kind is not None else None
