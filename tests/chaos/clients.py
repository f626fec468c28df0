"""Clients that ask all coordinators all the while, and keep what they were answered, and when."""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc

from drumbeat.access.certificates import SERVER_NAME, trust_anchors
from drumbeat.access.token import parse_token
from drumbeat.v1 import control_pb2, control_pb2_grpc, query_pb2, query_pb2_grpc
from tests.chaos.decisions import Append, Leads, Listed, Progress
from tests.chaos.history import Operation
from tests.support.channels import with_token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALL_S = 1.0
LOOK_S = 0.15
WRITE_S = 0.25
_NOTE = re.compile(r"note-\d+")


class Channel:
    """The way to one coordinator, as an administrator."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        anchors = trust_anchors([parse_token(token).ca])
        secret = with_token(grpc.ssl_channel_credentials(anchors), token)
        options = [
            ("grpc.ssl_target_name_override", SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 500),
        ]
        self._channel = grpc.secure_channel(address, secret, options)
        self.query = query_pb2_grpc.QueryServiceStub(self._channel)
        self.control = control_pb2_grpc.ControlServiceStub(self._channel)

    def close(self) -> None:
        """Give it up."""
        self._channel.close()

    def connect(self) -> None:
        """Return once there is a connection, or there can be none."""
        with suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=CALL_S)

    def leads(self) -> Leads | None:
        """Return its term, if it says that it leads. Raises ``grpc.RpcError``, as all of these."""
        answer = self.query.ListCoordinators(query_pb2.ListCoordinatorsRequest(), timeout=CALL_S)
        own = [each for each in answer.coordinators if each.is_this]
        is_leader = bool(own) and own[0].is_leader and answer.term > 0
        return Leads(answer.term, own[0].address) if is_leader else None

    def run(self, run_id: str) -> query_pb2.Run:
        """Return a run."""
        return self.query.GetRun(query_pb2.GetRunRequest(run_id=run_id), timeout=CALL_S).run

    def agents(self, run_id: str) -> query_pb2.ListAgentsResponse:
        """Return the agents of a run."""
        request = query_pb2.ListAgentsRequest(run_id=run_id)
        return self.query.ListAgents(request, timeout=CALL_S)

    def notes(self, run_id: str) -> Listed:
        """Return the notes of a run."""
        request = query_pb2.ListEventsRequest(run_id=run_id)
        events = self.query.ListEvents(request, timeout=CALL_S).events
        texts = "\n".join(
            event.reason for event in events if event.kind == query_pb2.RUN_EVENT_KIND_NOTE_ADDED
        )
        return Listed(frozenset(_NOTE.findall(texts)))

    def tokens(self) -> frozenset[str]:
        """Return the ids of all tokens."""
        answer = self.control.ListTokens(control_pb2.ListTokensRequest(), timeout=CALL_S)
        return frozenset(token.token_id for token in answer.tokens)

    def create_token(self, role: control_pb2.Role.ValueType) -> str:
        """Make a token; return its text."""
        request = control_pb2.CreateTokenRequest(role=role)
        return str(self.control.CreateToken(request, timeout=CALL_S).text)


def progress(run: query_pb2.Run) -> Progress:
    """Return how far a run is, as it was answered."""
    has_round = run.HasField("round")
    return Progress(
        round_id=run.round.round_id if has_round else -1,
        restarts=run.round.restart_count if has_round else 0,
        failures=run.failures_count,
        events=run.event_sequence,
        verdict=run.verdict.reason if run.HasField("verdict") else "",
    )


def _progress(channel: Channel, run_id: str) -> Progress:
    return progress(channel.run(run_id))


class Clients:
    """A reader for each coordinator, and a writer; a context manager."""

    def __init__(self, channels: Sequence[Channel], runs: Sequence[str]) -> None:
        self._channels, self._runs = list(channels), list(runs)
        self.terms: list[Operation[Any]] = []
        self.progress: dict[str, list[Operation[Any]]] = {run: [] for run in runs}
        self.notes: dict[str, list[Operation[Any]]] = {run: [] for run in runs}
        self.tokens: list[str] = []
        """Ids of those whose creation was answered."""
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(channel,)) for channel in channels
        ]
        self._threads.append(threading.Thread(target=self._write))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask nothing any more."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _read(self, channel: Channel) -> None:
        for number in itertools.count():
            if self._is_over.wait(LOOK_S):
                return
            self.look(channel, with_lists=number % 4 == 0)

    def look(self, channel: Channel, *, with_lists: bool) -> None:
        """Ask one coordinator for all that it decides; without an answer nothing is kept."""
        self._ask(self.terms, channel, channel.leads)
        for run_id in self._runs:
            self._ask(self.progress[run_id], channel, partial(_progress, channel, run_id))
            if with_lists:
                self._ask(self.notes[run_id], channel, partial(channel.notes, run_id))

    def _ask(self, into: list[Operation[Any]], channel: Channel, ask: Callable[[], Any]) -> None:
        called_at = time.monotonic()
        try:
            answer = ask()
        except grpc.RpcError:
            return
        if answer is not None:
            into.append(Operation(channel.address, called_at, time.monotonic(), answer))

    def _write(self) -> None:
        for number in itertools.count():
            if self._is_over.wait(WRITE_S):
                return
            channel = self._channels[number % len(self._channels)]
            self._add_note(channel, self._runs[number % len(self._runs)], f"note-{number}")
            if number % 6 == 0:
                with suppress(grpc.RpcError):
                    token = channel.create_token(control_pb2.ROLE_VIEW)
                    self.tokens.append(parse_token(token).token_id)

    def _add_note(self, channel: Channel, run_id: str, text: str) -> None:
        request = control_pb2.AddNoteRequest(run_id=run_id, text=text, request_id=text)
        called_at, returned_at = time.monotonic(), math.inf
        with suppress(grpc.RpcError):
            channel.control.AddNote(request, timeout=CALL_S)
            returned_at = time.monotonic()
        self.notes[run_id].append(Operation("writer", called_at, returned_at, Append(text)))
