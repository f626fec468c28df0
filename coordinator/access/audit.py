"""Shell. Who did what: a log line for each control call, and for callers that are not let in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import structlog

from drumbeat.coordinator.access.recent import Recent
from drumbeat.coordinator.core.registry.throttle import Throttle
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.text.format import count, one_line
from drumbeat.v1.query_pb2 import AuditEntry

log = structlog.get_logger()

# Of one address and for one reason a refusal is logged once in this time.
REFUSALS_INTERVAL_S = 10.0
# Addresses and reasons in that time; of more it is only logged how many there were.
REFUSALS_HEARD_MAX = 256
NAME_CHARACTERS_MAX = 256


class Audit:
    """Writes the lines. No secret is in them: callers and tokens have names."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.recent = Recent()
        self._refusals = Throttle(REFUSALS_INTERVAL_S, keys_max=REFUSALS_HEARD_MAX)

    @contextmanager
    def call(self, method: str, caller: str, run_id: str = "") -> Iterator[dict[str, Any]]:
        """Log a control call when it is over, whatever its end, with what the block puts in."""
        details: dict[str, Any] = {"run.id": one_line(run_id)} if run_id else {}
        result, reason, who = "CANCELLED", None, one_line(caller, NAME_CHARACTERS_MAX)
        try:
            yield details
            result = "OK"
        except CoordinatorError as error:
            result, reason = error.status, str(error)
            raise
        except Exception:
            result = "INTERNAL"
            raise
        finally:
            about = "".join(f", {name}={value}" for name, value in details.items())
            whom = who or "an unauthenticated caller"
            text = f"{whom} called {method}{about}: {reason or result}"
            self.recent.add(AuditEntry(caller=who, method=method, result=result, text=text))
            log.info(
                "control call",
                message=text,
                method=method,
                caller=who,
                result=result,
                reason=reason,
                **details,
            )

    def refused(
        self, peer: str, error: CoordinatorError, *, method: str = "", token_id: str = ""
    ) -> None:
        """Log that a caller was not let in, as gRPC names the ``peer``; repeated ones are counted.

        ``token_id`` is that of the token it showed, which may be any.
        """
        address, reason = address_of(peer), str(error)
        # The caller chose the id: another one makes no other reason.
        key = address, reason.replace(token_id, "") if token_id else reason
        left_out = self._refusals.take(key, now=self._clock())
        if left_out is None:
            return
        crowded_out, self._refusals.crowded_out = self._refusals.crowded_out, 0
        more = [f"{count(left_out, 'refusal')} more like it"] if left_out else []
        more += [f"{count(crowded_out, 'refusal')} of other callers"] if crowded_out else []
        since = f" (not shown since: {', '.join(more)})" if more else ""
        text = f"{address} refused: {reason}{since}"
        entry = AuditEntry(caller=address, method=method, result=error.status, text=text)
        self.recent.add(entry)
        log.warning(
            "caller refused",
            message=text,
            peer=address,
            method=method or None,
            result=error.status,
            reason=reason,
            left_out=left_out,
            left_out_of_others=crowded_out,
            **({"token.id": token_id} if token_id else {}),
        )


def address_of(peer: str) -> str:
    """Return the address of a peer without its port: "10.0.0.7", "::1", "unix:"."""
    kind, _, rest = unquote(peer).partition(":")
    if kind in ("ipv4", "ipv6"):
        return rest.rpartition(":")[0].strip("[]")
    return one_line(peer)
