"""Pure. What the command line asks a coordinator for: a verb with its values, and the way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumbeat.access.settings import AccessSettings
from drumbeat.command import settings
from drumbeat.command.settings import Setting, declare, one_of, setting
from drumbeat.coordinator.api.operations import VERBS, Operation, Scope, Verb
from drumbeat.text.addresses import PORT_DEFAULT

OUTPUT = Setting(
    "text",
    one_of(("text", "json")),
    "Options",
    "text, to be read; json, for programs, as docs/operating.md describes it.",
    flags=("-o", "--output"),
    has_variable=False,
)


@dataclass(frozen=True, kw_only=True)
class Request(AccessSettings):
    """One verb, as it was asked for."""

    name: str  # of the verb
    values: Mapping[str, Any]  # of its arguments and options, by the field of the request
    coordinator: str = setting(
        f"127.0.0.1:{PORT_DEFAULT}",
        settings.ADDRESSES,
        "Options",
        "Address of the coordinator; the port is 29400 unless one is given. For a cluster: any or "
        "all of its addresses; the leader is looked up from them.",
    )
    use_proxy: bool = declare(settings.USE_PROXY)
    output: str = declare(OUTPUT)

    @property
    def verb(self) -> Verb:
        """The row of its verb."""
        return VERBS[self.name][1]

    @property
    def operation(self) -> Operation:
        """The method that it calls, or the first of them."""
        return VERBS[self.name][0]

    @property
    def is_looking(self) -> bool:
        """Whether it shows runs, with several calls."""
        is_query = self.operation.service == "Query" and self.operation.scope is Scope.RUN
        return is_query or bool(self.verb.own_options)


def common_settings() -> dict[str, Setting]:
    """Return the options of all verbs, those of access last."""
    declared = settings.settings_of(Request)
    return dict(sorted(declared.items(), key=lambda item: item[1].section != "Options"))


def request(name: str, /, **given: Any) -> Request:
    """Return a request with the defaults of what is not given, as the command line makes it."""
    verb, common = VERBS[name][1], common_settings()
    values = {
        **dict.fromkeys(verb.arguments),
        **{key: option.default for key, option in verb.settings.items()},
        **{key: value for key, value in given.items() if key not in common},
    }
    return Request(
        name=name,
        values=values,
        **{key: value for key, value in given.items() if key in common},
    )
