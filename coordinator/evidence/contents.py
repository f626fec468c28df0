"""Pure. The files of an archive of evidence, from what was gathered of a run, without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from drumbeat.access.redactor import hidden_value, names_secret, without_named_values
from drumbeat.command.table import table
from drumbeat.coordinator.wire import stack_groups
from drumbeat.text.format import format_size, one_line, printable

# Of all files together, before compression. The first files of an archive tell most.
BYTES_MAX = 32 * 1024 * 1024
_NAME_CHARACTERS_MAX = 64
_CUT = "\n… (the rest is left out: the archive has reached its limit)\n"

Redact = Callable[[str], str]
_PARTS = {
    "status": "the run, its agents and workers, as `coordinator status -o json` writes them",
    "why": "why the run is as it is, in sentences",
    "report": "the failure report: causes, victims, their tracebacks, stacks and last lines",
    "hang": "the latest hang: where all ranks were when a worker exceeded its limit",
    "stacks": "where the workers were when this archive was made",
    "events": "what was decided on the run, all that is kept",
    "steps": "step times of the last minutes, and slow ranks",
    "goodput": "what the time of the run went into",
    "versions": "releases of drumbeat and Python",
    "settings": "settings of the coordinator and of the run",
    "logs": "the last lines of the ranks that tell most, a file for each rank and stream",
}


@dataclass(slots=True)
class Evidence:
    """What was gathered of a run: documents by part, and why parts are missing or not whole."""

    run_id: str
    made: str  # when, for the names of archive and folder
    reason: str  # why it was gathered
    generation: int = 0  # which of the runs of this id; 0: the latest
    parts: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the archive and its folder; of any run id it is a plain file name."""
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", self.run_id)[:_NAME_CHARACTERS_MAX]
        return f"drumbeat-{plain}-{self.made}"

    def note(self, part: str, why: str) -> None:
        """Say why a part is missing, or not whole."""
        self.notes.setdefault(part, []).append(why)


class File(NamedTuple):
    """One file of the archive."""

    name: str
    content: bytes


def files_of(evidence: Evidence, redact: Redact, bytes_max: int = BYTES_MAX) -> list[File]:
    """Return the files, README.txt first. Those that exceed the limit are cut or left out."""
    files = list[File]()
    left = bytes_max
    # Equal texts, as stacks are, are looked through once.
    without_secrets = cache(lambda text: without_named_values(redact(text)))
    for part in _PARTS:
        if part not in evidence.parts:
            continue
        shown = hidden(evidence.parts[part], without_secrets)
        for name, text in _files(part, shown, evidence.run_id):
            content = text.encode(errors="backslashreplace")
            if len(content) > left:
                evidence.note(
                    part, f"{name} is cut or left out: more than {format_size(bytes_max)}"
                )
                content = b"" if name.endswith(".json") else content[:left]
                content += _CUT.encode() if content else b""
            if content:
                files.append(File(name, content))
                left = max(0, left - len(content))
    readme = without_secrets(_readme(evidence, files))
    return [File("README.txt", readme.encode(errors="backslashreplace")), *files]


def hidden(value: Any, redact: Redact, name: str = "") -> Any:
    """Return a document without secrets; ``name`` is its key in another one."""
    match value:
        case str() if value and names_secret(name):
            return hidden_value(name)
        case str():
            return redact(value)
        case list():
            return [hidden(item, redact) for item in value]
        case stack_groups.Worker():
            return stack_groups.Worker._make(hidden(item, redact) for item in value)
        case dict():
            return {key: hidden(item, redact, key) for key, item in value.items()}
    return value


def _files(part: str, document: Any, run_id: str) -> Iterator[tuple[str, str]]:
    match part:
        case "events":
            yield "events.jsonl", "".join(f"{json.dumps(event)}\n" for event in document)
            heads = ["event", "age_s", "round_id", "kind", "reason"]
            rows = [
                [str(event["sequence"]), *(_cell(event[key]) for key in heads[1:])]
                for event in document
            ]
            yield "events.txt", f"{table([head.upper() for head in heads], rows)}\n"
        case "stacks":
            yield "stacks.txt", stack_groups.text(document)
            yield "stacks.json", _json(stack_groups.document(run_id, document))
        case "logs":
            for name, lines in document.items():
                yield f"logs/{name}.txt", printable("".join(f"{line}\n" for line in lines))
        case _:
            if part in ("why", "report", "hang", "goodput"):
                yield f"{part}.txt", printable("".join(f"{line}\n" for line in _outline(document)))
            yield f"{part}.json", _json(document)


def _json(document: Any) -> str:
    return f"{json.dumps(document, indent=1)}\n"


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)


def _outline(document: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a document to be read; what is empty is left out."""
    named = isinstance(document, Mapping)
    for name, value in document.items() if named else enumerate(document):
        head = f"{indent}{name}:" if named else f"{indent}-"
        if value in (None, "", [], {}):
            continue
        match value:
            case str() if "\n" in value:
                yield head
                yield from (f"{indent}    {line}" for line in value.strip("\n").split("\n"))
            case Mapping() | list():
                yield head
                yield from _outline(value, f"{indent}  ")
            case _:
                yield f"{head} {value}"


def _readme(evidence: Evidence, files: list[File]) -> str:
    """Say what is in the archive, and what is not and why."""
    lines = [
        f"Evidence of run {one_line(evidence.run_id)}, made {evidence.made}: {evidence.reason}.",
        "",
        "Values of secrets are hidden as far as drumbeat knows them: read the files before you",
        "give them away. docs/operating.md describes the names in the JSON files.",
        "",
    ]
    names = {part: [file.name for file in files if _part_of(file.name) == part] for part in _PARTS}
    for part, about in _PARTS.items():
        if part == "logs" and names[part]:
            lines.append(f"logs/: {about}")
        elif names[part]:
            lines.append(f"{', '.join(names[part])}: {about}")
    missing = [
        f"{part}: {one_line(why)}" for part, notes in evidence.notes.items() for why in notes
    ]
    lines += ["", "Missing or not whole:", *missing] if missing else []
    return "".join(f"{line}\n" for line in lines)


def _part_of(name: str) -> str:
    return name.partition("/")[0].partition(".")[0]
