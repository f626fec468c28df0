"""Shell. What an operator's command asks of a coordinator that runs: the way in, and refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from drumbeat.access.client import Credentials, Metadata, credentials
from drumbeat.access.diagnosis import explain, is_worth_asking
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.access.settings import AccessSettings
from drumbeat.command.leader_search import NO_LEADER, LeaderSearch, Outcome, is_silence
from drumbeat.coordinator.errors import CallFailed
from drumbeat.text.addresses import parse_addresses
from drumbeat.v1 import common_pb2
from drumbeat.wire.mapping import ERROR_KEY

T = TypeVar("T")

# A coordinator that vanished without a word is noticed within the sum of these, which agents
# have, too; and so long each try to connect may take.
KEEPALIVE_AFTER_S = 10.0
KEEPALIVE_WITHIN_S = 5.0
# Of one of several, for another one leads by then.
KEEPALIVE_OF_SEVERAL_S = 2.0
CONNECT_OF_SEVERAL_S = 4.0

# Between rounds of a search while those that follow name one that has died: its lease has to end.
ELECTION_WAITS_S = (0.2, 0.4, 0.8, 1.6, 1.6)

EXIT_REFUSED, EXIT_NOT_REACHED = 2, 3
# In the details of a call that never left.
_NOT_SENT = ("failed to connect", "DNS resolution failed", "Name resolution failure")


class CoordinatorCalls:
    """A command's way to the coordinator that leads, of those that it was told of."""

    def __init__(self, access: AccessSettings, coordinators: str, *, use_proxy: bool) -> None:
        self._access, self._use_proxy = access, use_proxy
        self.search = LeaderSearch(parse_addresses(coordinators))
        self._exit_codes: dict[str, int] = {}
        self.goes_on = False
        """Whether another coordinator is to be asked at once, now that one could not be."""

    def note_leader(self) -> None:
        """Take note that the coordinator which is asked leads, and answers."""
        self.search.note_leader()
        self._exit_codes.clear()

    def ask(
        self,
        work: Callable[[grpc.Channel, Metadata], T],
        *,
        is_repeatable: bool = True,
        is_patient: bool = True,
    ) -> T:
        """Return what ``work`` does with the coordinator that leads; as ``call_channel``.

        It is begun again with the next one if it is refused by one that does not lead, or could
        not be sent; if ``is_repeatable``, after silence, too. If the one that is named has died,
        another one is waited for if ``is_patient``.
        """
        waits = iter(ELECTION_WAITS_S if is_patient else ())
        while True:
            try:
                with self.channel() as (channel, metadata):
                    return work(channel, metadata)
            except CallFailed as error:
                is_lost = error.outcome is Outcome.SILENT and not is_repeatable
                if self.goes_on and not is_lost:
                    continue
                failed, wait_s = self.failure(error), next(waits, None)
                is_awaited = failed.exit_code == EXIT_NOT_REACHED and self.search.is_leader_dead
                if is_lost or wait_s is None or not is_awaited:
                    raise failed from (None if failed is error else error)
                time.sleep(wait_s)

    @contextmanager
    def channel(self) -> Iterator[tuple[grpc.Channel, Metadata]]:
        """Open a channel to the coordinator that is next; as ``call_channel``."""
        search, self.goes_on = self.search, False
        where, has_others = search.address, search.has_others
        try:
            with call_channel(
                self._access, where, use_proxy=self._use_proxy, has_others=has_others
            ) as opened:
                yield opened
        except CallFailed as error:
            if error.outcome is not Outcome.NOT_LEADER:
                self._exit_codes[where] = error.exit_code
            self.goes_on = search.failed(error.outcome, str(error), leader=error.leader)
            raise
        else:
            self.note_leader()

    def failure(self, error: CallFailed) -> CallFailed:
        """Return what ends the command: of several coordinators, why each could not be asked."""
        is_of_one = not self.search.has_others and error.outcome is not Outcome.NOT_LEADER
        if is_of_one or error.outcome in (Outcome.REFUSED, Outcome.BROKEN):
            return error
        is_final = set(self._exit_codes.values()) == {EXIT_REFUSED}
        code = EXIT_REFUSED if is_final else EXIT_NOT_REACHED
        why = self.search.why()
        text = why if why.startswith(NO_LEADER) else f"no coordinator that leads was found: {why}"
        return CallFailed(text, code, error.hint if code == error.exit_code else "")


@contextmanager
def call_channel(
    access: AccessSettings, coordinator: str, *, use_proxy: bool, has_others: bool = False
) -> Iterator[tuple[grpc.Channel, Metadata]]:
    """Open a channel to ``host:port``, with the metadata that its calls take. Blocks.

    Raises ``CallFailed`` if there is no way in, and for a call in the context that fails because
    the coordinator is not reached, is another one, does not lead, or does not let this user do it.
    With any other status the error of the call is raised. ``has_others``: it is one of several.
    """
    try:
        used = credentials(access, coordinator)
    except AccessProblem as problem:
        raise _failed(problem) from problem
    options = [*_options(is_proxied=use_proxy, has_others=has_others), *used.options]
    if (secret := used.channel) is None:
        channel = grpc.insecure_channel(coordinator, options)
    else:
        channel = grpc.secure_channel(coordinator, secret, options)
    try:
        with channel:
            yield channel, used.metadata
    except grpc.RpcError as error:
        if (failed := _failure(error, coordinator, used)) is None:
            raise
        raise failed from error


def error_detail(error: grpc.RpcError) -> common_pb2.ErrorDetail:
    """Return what a coordinator says of a refusal; empty if it says nothing."""
    metadata: Any = error.trailing_metadata() or ()
    details = {key: value for key, value in metadata}  # noqa: C416 - it is of a type of its own
    return common_pb2.ErrorDetail.FromString(details.get(ERROR_KEY, b""))


def _options(*, is_proxied: bool, has_others: bool) -> list[tuple[str, int]]:
    after_s, within_s, connect_s = KEEPALIVE_AFTER_S, KEEPALIVE_WITHIN_S, KEEPALIVE_WITHIN_S
    if has_others:
        after_s = within_s = KEEPALIVE_OF_SEVERAL_S
        connect_s = CONNECT_OF_SEVERAL_S
    return [
        # Each try has a connection of its own: a shared one would wait for the last one's back-off.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", round(1e3 * connect_s)),  # to connect, despite its name
        ("grpc.keepalive_time_ms", round(1e3 * after_s)),
        ("grpc.keepalive_timeout_ms", round(1e3 * within_s)),
        # Without it newer releases wait a minute for the answer, whatever stands above.
        ("grpc.http2.ping_timeout_ms", round(1e3 * within_s)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", int(is_proxied)),
    ]


def _failure(error: grpc.RpcError, coordinator: str, used: Credentials) -> CallFailed | None:
    details, detail = str(error.details() or ""), error_detail(error)
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            # The coordinator's own user is refused only while it restarts.
            problem = AccessProblem(details, HOW_TO_GET_IN, is_final=not used.is_local)
            return _failed(problem)
        case grpc.StatusCode.PERMISSION_DENIED:
            hint = "this takes a token of another role, or of another run"
            return _failed(AccessProblem(details, hint), Outcome.REFUSED)
        # A server that ends cancels the calls that are under way.
        case (
            grpc.StatusCode.UNAVAILABLE
            | grpc.StatusCode.DEADLINE_EXCEEDED
            | grpc.StatusCode.CANCELLED
        ):
            if detail.refusal == common_pb2.REFUSAL_NOT_LEADER:
                problem = AccessProblem(details, is_final=False)
                return _failed(problem, Outcome.NOT_LEADER, detail.leader)
            is_unclear = is_worth_asking(details, is_known=False)
            known = explain(coordinator, used) if is_unclear else None
            problem = known or AccessProblem(
                f"the coordinator at {coordinator} cannot be reached: {details}",
                "--coordinator HOST:PORT says where it listens",
                is_final=False,
            )
            return _failed(problem, _outcome(error.code(), details, detail))
    return None


def _outcome(status: grpc.StatusCode, details: str, detail: common_pb2.ErrorDetail) -> Outcome:
    if detail.refusal:
        return Outcome.REFUSED
    if any(mark in details for mark in _NOT_SENT):
        return Outcome.NO_ANSWER
    is_silent = status is grpc.StatusCode.DEADLINE_EXCEEDED or is_silence(details)
    return Outcome.SILENT if is_silent else Outcome.BROKEN


def _failed(
    problem: AccessProblem, outcome: Outcome = Outcome.NO_ANSWER, leader: str = ""
) -> CallFailed:
    code = EXIT_REFUSED if problem.is_final else EXIT_NOT_REACHED
    return CallFailed(problem.text, code, problem.hint, outcome=outcome, leader=leader)
