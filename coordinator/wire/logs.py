"""Shell. Output of workers as agents are asked for it and readers get it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumbeat.coordinator.core.collecting.log_reading import Brought, LogsAsked
from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.v1 import query_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping

RANKS_MAX = 1_000
AGENTS_MAX = 1_000  # each has a connection more while it brings output
TAIL_MAX = 10_000

REQUEST = MessageMapping(LogsAsked, session_pb2.LogRequest, given=("run_id",))


def logs_asked(request: query_pb2.WatchLogsRequest, state: RunState) -> LogsAsked:
    """Read what a reader asks for. Raises ``InvalidRequest``."""
    if len(request.ranks) > RANKS_MAX:
        allowed = f"at most {RANKS_MAX} of them; none for all"
        raise InvalidRequest("rank", f"{len(request.ranks)} ranks", allowed)
    if request.tail > TAIL_MAX:
        raise InvalidRequest("tail", request.tail, f"at most {TAIL_MAX}")
    current = state.round
    if not request.ranks and current is not None and len(current.seats) > AGENTS_MAX:
        allowed = f"ranks, at most {RANKS_MAX}: more than {AGENTS_MAX} agents would bring output"
        raise InvalidRequest("rank", "none", allowed)
    is_new = not request.HasField("since_round")
    if is_new and current is not None and request.ranks:
        size = current.world_size
        if (highest := max(request.ranks)) >= size:
            allowed = f"0 to {size - 1}, the ranks of round {current.round_id}"
            raise InvalidRequest("rank", highest, allowed)
    begin = 0 if current is None else current.round_id
    return LogsAsked(
        run_id=state.run_id,
        ranks=tuple(request.ranks),
        since_round=begin if is_new else request.since_round,
        tail=request.tail,
        follow=request.follow,
    )


def brought_message(
    brought: Brought, member: AgentIdentity | None, since_round: int
) -> query_pb2.WatchLogsResponse:
    """Write what an agent brought for readers."""
    response = query_pb2.WatchLogsResponse(
        since_round=since_round, incarnation=brought.incarnation, pieces=brought.pieces
    )
    if member is not None:
        response.name, response.host = member.name, member.host
    for rank in brought.ranks:
        response.pieces.add(
            next=session_pb2.LogCursor(rank=rank, round_id=since_round), problem=brought.problem
        )
    return response


def tail_messages(
    kept: Iterable[bytes], request: query_pb2.WatchLogsRequest, round_id: int
) -> Iterator[query_pb2.WatchLogsResponse]:
    """Yield what a reader asks for of what agents brought as a round ended."""
    wanted, silent = set(request.ranks), set(request.ranks)
    for content in kept:
        response = query_pb2.WatchLogsResponse.FromString(content)
        pieces = [
            piece
            for piece in response.pieces
            if piece.next.round_id == round_id and (not wanted or piece.next.rank in wanted)
        ]
        del response.pieces[:]
        for piece in pieces:
            lines = piece.text.removesuffix("\n").split("\n")
            piece.text = "\n".join(lines[-request.tail :] if request.tail else ())
            silent.discard(piece.next.rank)
        response.pieces.extend(pieces)
        yield response
    why = "it is none of the ranks whose output the coordinator has kept"
    brought = Brought(incarnation="", ranks=tuple(sorted(silent)), problem=why)
    yield brought_message(brought, None, round_id)
