"""Write docs/settings.md, the reference of all settings, from their declarations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drumbeat.agent.cli import COMMAND_LINE_ONLY, DOCTOR_SETTINGS, SETTINGS
from drumbeat.agent.settings.launch_config import LaunchConfig
from drumbeat.command.settings import FLAG, QUIET, Setting, settings_of
from drumbeat.coordinator.api.operations import VERBS
from drumbeat.coordinator.command.archiving.requests import JournalRequest
from drumbeat.coordinator.command.cli import SETTINGS as SERVE_SETTINGS
from drumbeat.coordinator.command.request import common_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PAGE = Path(__file__).resolve().parents[1] / "docs/settings.md"

HEAD = """\
# Settings

Written by `scripts/gen_settings.py` from the declarations; `make gen` writes it anew.

An argument counts before the environment, and that before the default. Options may be spelled with
`_` in place of `-`, and cut short while they stay unique. A DURATION is a number of seconds, or has
a unit: `500ms`, `30s`, `1.5m`, `2h`; at most 30 days. Variables are read in the order of the table.
"""


def page() -> str:
    """Return the whole page."""
    in_python = settings_of(LaunchConfig)
    about_python = (
        "The fields of `drumbeat.LaunchConfig` have the names of the last column; durations are "
        "seconds there,\nand `max_restarts` is 3 unless it is given."
    )
    parts = [
        HEAD,
        f"## `agent join`\n\n{about_python}\n",
        table({**SETTINGS, **COMMAND_LINE_ONLY}, in_python),
        "## `agent doctor`\n",
        table(DOCTOR_SETTINGS),
        "## `coordinator serve`\n",
        table({**SERVE_SETTINGS, "quiet": QUIET}),
        *operators(),
        "## `coordinator journal export`, `import` and `check`\n",
        table(settings_of(JournalRequest)),
    ]
    return "\n".join(parts)


def operators() -> list[str]:
    """Return what the commands of operators have each, and at last what all of them have."""
    parts: list[str] = []
    for name, (_, verb) in VERBS.items():
        if verb.options:
            parts += [f"## `coordinator {name}`\n", table(verb.settings)]
    return [*parts, "## All commands of operators\n", table(common_settings())]


def table(settings: Mapping[str, Setting], fields: Collection[str] = ()) -> str:
    """Return a table of options, by section in the order of their declaration."""
    rows = [["option", "allowed", "default", "variables", "meaning"]]
    sections = list(dict.fromkeys(item.section for item in settings.values()))
    for name, item in sorted(settings.items(), key=lambda pair: sections.index(pair[1].section)):
        if not item.section:
            continue
        spelled = ", ".join(f"`{flag}`" for flag in item.flags)
        variables = (item.variable, *item.variables) if item.has_variable else ()
        default = item.shown_default or (f"`{item.default_text}`" if item.default_text else "")
        rows.append(
            [
                spelled if item.kind is FLAG else f"{spelled} `{item.kind.metavar}`",
                "" if item.kind is FLAG else item.kind.allowed,
                "required" if item.is_required else default,
                ", ".join(f"`{variable}`" for variable in variables),
                item.help,
            ]
        )
        if fields:
            own = ("min_nodes", "max_nodes") if name == "nnodes" else (name,)
            rows[-1].append(", ".join(f"`{field}`" for field in own if field in fields))
    if fields:
        rows[0].append("field")
    rows.insert(1, ["---"] * len(rows[0]))
    lines = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
