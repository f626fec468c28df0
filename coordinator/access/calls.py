"""Shell. What an operator's command asks of a coordinator that runs: the way in, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from coordinator.errors import CallFailed
from drumbeat.access.client import Credentials, Metadata, credentials
from drumbeat.access.diagnosis import explain, is_worth_asking
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem

if TYPE_CHECKING:
    from drumbeat.access.settings import AccessSettings

# A coordinator that vanished without a word is noticed within the sum of these, which agents
# have, too; and so long each try to connect may take.
KEEPALIVE_AFTER_S = 10.0
KEEPALIVE_WITHIN_S = 5.0


def _options(*, is_proxied: bool) -> list[tuple[str, int]]:
    after_ms, within_ms = round(1e3 * KEEPALIVE_AFTER_S), round(1e3 * KEEPALIVE_WITHIN_S)
    return [
        # Each try has a connection of its own: a shared one would wait for the last one's back-off.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", within_ms),  # to connect, in spite of its name
        ("grpc.keepalive_time_ms", after_ms),
        ("grpc.keepalive_timeout_ms", within_ms),
        # Without it newer releases wait a minute for the answer, whatever stands above.
        ("grpc.http2.ping_timeout_ms", within_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", int(is_proxied)),
    ]


@contextmanager
def call_channel(
    access: AccessSettings, coordinator: str, *, use_proxy: bool
) -> Iterator[tuple[grpc.Channel, Metadata]]:
    """Open a channel to ``host:port``, with the metadata that its calls take. Blocks.

    Raises ``CallFailed`` if there is no way in, and for a call in the context that fails because
    the coordinator is not reached, is another one, or does not let this user do it. With any other
    status the error of the call is raised.
    """
    try:
        used = credentials(access, coordinator)
    except AccessProblem as problem:
        raise _failed(problem) from problem
    options = [*_options(is_proxied=use_proxy), *used.options]
    if (secret := used.channel) is None:
        channel = grpc.insecure_channel(coordinator, options)
    else:
        channel = grpc.secure_channel(coordinator, secret, options)
    try:
        with channel:
            yield channel, used.metadata
    except grpc.RpcError as error:
        if (found := _problem_of(error, coordinator, used)) is None:
            raise
        raise _failed(found) from error


def _problem_of(error: grpc.RpcError, coordinator: str, used: Credentials) -> AccessProblem | None:
    details = str(error.details() or "")
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            # The coordinator's own user is refused only while it restarts.
            return AccessProblem(details, HOW_TO_GET_IN, is_final=not used.is_local)
        case grpc.StatusCode.PERMISSION_DENIED:
            return AccessProblem(details, "this takes a token of another role, or of another run")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            is_unclear = is_worth_asking(details, is_known=False)
            known = explain(coordinator, used) if is_unclear else None
            return known or AccessProblem(
                f"the coordinator at {coordinator} cannot be reached: {details}",
                "--coordinator HOST:PORT says where it listens",
                is_final=False,
            )
    return None


def _failed(problem: AccessProblem) -> CallFailed:
    return CallFailed(problem.text, 2 if problem.is_final else 3, problem.hint)
