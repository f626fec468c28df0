"""Pure. What `agent doctor` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumbeat.access.settings import AccessSettings
from drumbeat.agent.settings.config import JobSettings
from drumbeat.command import settings
from drumbeat.command.settings import Setting, declare
from drumbeat.text.addresses import PORT_DEFAULT

_OF_JOIN = settings.settings_of(JobSettings)


def _as_join(name: str) -> Any:
    return declare(_OF_JOIN[name]._replace(section="Options"))


def _own(default: Any, kind: settings.Kind, about: str, *flags: str) -> Any:
    return declare(Setting(default, kind, "Options", about, flags, has_variable=False))


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(AccessSettings):
    """``agent doctor``; options of `agent join` mean the same and have the same variables."""

    coordinator: str | None = _as_join("coordinator")
    use_proxy: bool = _as_join("use_proxy")
    run_id: str = _as_join("run_id")
    log_dir: str | None = _as_join("log_dir")
    peers: str | None = _own(
        None,
        settings.ADDRESSES,
        f"Other hosts to connect to, at port {PORT_DEFAULT} unless given.",
        "--with",
    )
    listen: int | None = _own(
        None,
        settings.number(1, 65535, metavar="PORT"),
        "Check nothing: answer `agent doctor --with` of other hosts for a minute.",
        "--listen",
    )
    output: str = _own(
        "text", settings.one_of(("text", "json")), "text, or json for programs.", "-o", "--output"
    )
