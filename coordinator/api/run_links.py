"""Pure. Links from a run to other systems, as ``coordinator serve --link`` gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from drumbeat.command.settings import Kind
from drumbeat.coordinator.core.run.state import RunState

LINKS_MAX, LINK_CHARACTERS_MAX = 16, 2_048
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# Whoever joins chooses labels: the host has none.
_LINK = re.compile(
    r"[^={}]{1,64}=https?://[^\s/?#{}]+"
    r"([/?#]([^\s{}]|\{(run_id|generation|label\.[^{}]+)\})*)?"
)


def _link(given: str) -> str:
    if len(given) > LINK_CHARACTERS_MAX or not given.isprintable() or not _LINK.fullmatch(given):
        raise ValueError
    return given


def _links(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or len(given) > LINKS_MAX:
        raise ValueError
    return tuple(map(_link, given))


LINK = Kind(
    f"up to {LINKS_MAX} times NAME=URL, a URL with http:// or https:// that may have {{run_id}}, "
    "{generation} and {label.KEY} behind its host",
    _links,
    _link,
    " ".join,
    metavar="NAME=URL",
    is_repeated=True,
)


def links_of(templates: Iterable[str], state: RunState) -> Iterator[tuple[str, str]]:
    """Yield name and URL of each link of which the run has all labels."""
    known = {f"label.{key}": value for key, value in state.labels.items()}
    known |= {"run_id": state.run_id, "generation": str(state.generation)}
    for template in templates:
        name, _, url = template.partition("=")
        if known.keys() >= set(_PLACEHOLDER.findall(url)):
            yield name, _PLACEHOLDER.sub(lambda match: quote(known[match[1]], safe=""), url)
