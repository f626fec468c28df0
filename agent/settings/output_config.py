"""Pure. What an agent was told about the output of its workers, and how that is written down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

NOWHERE = "0"
"""Value of redirects and tee that means no stream of any worker."""

_RANKS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Where the output of workers goes. Immutable."""

    redirects: str = NOWHERE
    """Streams that go to a file instead of the console; see ``Std.from_str``."""

    tee: str = NOWHERE
    """Streams that go to a file and to the console."""

    local_ranks_filter: frozenset[int] | None = None
    """Only these workers may write to the console; None: all."""

    line_prefix_template: str | None = None
    """What a teed line begins with; None: ``[<role><local rank>]:``."""

    stdout_filters: tuple[str, ...] = ()
    """Teed lines of standard output that contain one of these also go to one file for all."""

    stderr_filters: tuple[str, ...] = ()
    """The same for standard error."""

    logs_specs: str | None = None
    """Name of an installed package's class that decides on the files; None: ours."""

    logs_specs_pickle: bytes | None = None
    """Instead of a name: what decides, as a program that launches this agent has made it."""

    is_stderr_captured: bool = True
    """Whether the last lines of standard error are kept for the failure report."""

    @property
    def is_ours(self) -> bool:
        """Whether this decides on the files, and nothing that a program or a package has made."""
        return self.logs_specs is None and self.logs_specs_pickle is None

    @property
    def is_in_files(self) -> bool:
        """Whether any worker's output goes to a file."""
        return self.redirects != NOWHERE or self.tee != NOWHERE


def parse_ranks(text: str) -> frozenset[int] | None:
    """Read local ranks, "0,2"; empty: None.

    Raises:
        ValueError: ``text`` is anything else; the message says what is allowed.
    """
    if not text.strip():
        return None
    compact = text.replace(" ", "")
    if _RANKS.fullmatch(compact) is None:
        raise ValueError(f"{text!r} is given, allowed are local ranks separated by commas: 0,2")
    return frozenset(int(rank) for rank in compact.split(","))


def parse_filters(text: str) -> tuple[str, ...]:
    """Read texts separated by commas; a double comma is one comma within a text."""
    # A zero byte can be part of no argument and no variable of the environment.
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def line_prefix(template: str | None, values: Mapping[str, object]) -> str:
    """Return what the lines of one worker begin with.

    Args:
        template: With ``${role_name}``, ``${local_rank}``, ``${rank}``, ``${run_id}``; what
            else looks like a variable stays as it is.
        values: Those four.
    """
    return Template(template or "[${role_name}${local_rank}]:").safe_substitute(values)
