"""The ways in which we are measured: as by default, without encryption, and as before a change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from drumbeat.access.settings import AccessSettings

ROOT = Path(__file__).resolve().parent.parent

Measure = Callable[[], float | None]


class Way(StrEnum):
    """How the commands of one measurement run. The values are those of sides."""

    DEFAULT = "ours"
    INSECURE = "insecure"
    BEFORE = "before"

    @property
    def tree(self) -> Path:
        """Whose commands they are."""
        return TREES.get(self, ROOT)

    @property
    def python(self) -> str:
        """What runs them."""
        return str(self.tree / ".venv/bin/python") if self in TREES else sys.executable

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return what runs a module, or one of our commands, ``agent`` and ``coordinator``."""
        is_command = name in ("agent", "coordinator") and (self.tree / "src").exists()
        return [self.python, "-m", *(["drumbeat"] * is_command), name, *arguments]

    @property
    def options(self) -> tuple[str, ...]:
        """What both commands are given for it."""
        return ("--insecure",) if self is Way.INSECURE else ()


# Where the code of another commit is, with an environment in ``.venv``; see ``--before``.
TREES: dict[Way, Path] = {}


@dataclass(frozen=True, kw_only=True)
class Access(AccessSettings):
    """The way into a coordinator."""


def in_each_way(measure: Callable[[Way], float | None]) -> dict[str, Any]:
    """Return what to give a question whose figure is measured in each way."""
    return {str(way): partial(measure, way) for way in Way}
