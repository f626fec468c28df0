"""Shell. The way into a coordinator, which all connections of an agent have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from drumbeat.access import client, diagnosis
from drumbeat.access.client import Credentials
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.access.token import CA_CHARACTERS
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.session.transport import TransportError
from drumbeat.agent.settings.config import AgentConfig

T = TypeVar("T")

# Of what the coordinator says; see `drumbeat.v1.Authorities`.
AUTHORITIES_MAX = 8
# Files of tokens and certificates may be on a network file system. Less than a hello may take.
TIMEOUT_S = 10.0
_AUTHORITY = re.compile(rf"[A-Za-z0-9_-]{{{CA_CHARACTERS}}}", re.ASCII)


class Access:
    """Reads files anew for each connection; ``files`` does what blocks."""

    def __init__(self, config: AgentConfig, files: FileThread) -> None:
        assert config.coordinator is not None, "a standalone agent needs no way"
        self.has_others = config.knows_several
        self.checks_clock = "clock" in config.health_checks
        self._config, self._files = config, files
        self._authorities: tuple[str, ...] = ()
        self.known: set[str] = set()  # addresses at which the coordinator has answered

    def trust(self, authorities: Sequence[str]) -> None:
        """Take these for the coordinator's too, from the next connection on.

        Those that are of a form of later versions are passed over.
        """
        known = [key for key in authorities if _AUTHORITY.fullmatch(key)]
        if known:
            self._authorities = tuple(known[:AUTHORITIES_MAX])

    async def credentials(self, address: str) -> Credentials:
        """Return what a connection uses, from files as they are now. Raises ``TransportError``."""
        read = partial(client.credentials, self._config, address, authorities=self._authorities)
        try:
            return await self._run(read)
        except AccessProblem as problem:
            raise _error_of(problem) from problem

    async def examine(
        self, error: TransportError, address: str, used: Credentials
    ) -> TransportError:
        """Return what an error of a connection means: for the user, and for the next attempt."""
        if error.refusal == "UNAUTHENTICATED":
            return await self._examine_refusal(error, address, used)
        is_worth_it = diagnosis.is_worth_asking(error.reason, is_known=address in self.known)
        if error.refusal or not is_worth_it:
            return error
        try:
            problem = await self._run(partial(diagnosis.explain, address, used))
        except TransportError:
            return error
        return error if problem is None else _error_of(problem)

    async def _examine_refusal(
        self, error: TransportError, address: str, used: Credentials
    ) -> TransportError:
        """Try again with another token, if there is one by now; a refusal stands for the same."""
        if used.is_local:  # its coordinator has ended, or writes another one
            return TransportError(error.reason, hint=HOW_TO_GET_IN if self.has_others else "")
        try:
            present = await self.credentials(address)
        except TransportError as problem:
            reason = f"{error.reason}; {problem.reason}"
            return TransportError(reason, hint=problem.hint, is_final=problem.is_final)
        if _shown(present) == _shown(used):
            return error
        return TransportError(f"{error.reason}; there is another token by now")

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._files.run(work, timeout_s=TIMEOUT_S)
        except FilesStalled as stalled:
            raise TransportError(str(stalled)) from stalled


def _error_of(problem: AccessProblem) -> TransportError:
    return TransportError(problem.text, hint=problem.hint, is_final=problem.is_final)


def _shown(used: Credentials) -> tuple[object, str]:
    """Return what a connection says of who calls."""
    return used.token, used.tls.certificate if used.tls else ""
