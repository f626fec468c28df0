"""Shell. What a check finds, and the host that it looks at."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from drumbeat.agent.settings.doctor import DoctorSettings
from drumbeat.text.addresses import parse_addresses

# As it should be; likely a mistake; training will break. And their colours.
LEVELS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(NamedTuple):
    """One line of the answer; ``advice`` says what to do."""

    level: str
    text: str
    advice: str = ""


Findings = Iterator[Finding]
ok, warn, fail = (partial(Finding, level) for level in LEVELS)


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where checks read: each part can be another one in a test."""

    settings: DoctorSettings
    environment: Mapping[str, str]
    root: Path = Path("/")
    name: str = field(default_factory=socket.gethostname)
    resolve: Callable[..., Any] = socket.getaddrinfo
    interfaces: Callable[[], Mapping[str, Any]] = psutil.net_if_addrs
    getrlimit: Callable[[int], tuple[int, int]] = resource.getrlimit

    @property
    def coordinators(self) -> tuple[str, ...]:
        """The addresses of the coordinators."""
        return parse_addresses(self.settings.coordinator) if self.settings.coordinator else ()

    @property
    def peers(self) -> tuple[str, ...]:
        """The addresses of the other hosts."""
        return parse_addresses(self.settings.peers) if self.settings.peers else ()

    def addresses_of(self, name: str) -> tuple[list[str], str]:
        """Return the addresses of a name, each once, or why there are none. May block for long."""
        try:
            rows = self.resolve(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for what no name can be
            return [], f"{name} does not resolve: {getattr(error, 'strerror', '') or error}"
        return list(dict.fromkeys(str(row[4][0]) for row in rows)), ""
