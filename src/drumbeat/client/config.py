"""Shell. The settings of a client: what its launcher says, else the variables of `agent join`."""

from __future__ import annotations

import os
from typing import Any

from drumbeat.access.settings import ACCESS_NAMES
from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.command import settings
from drumbeat.violation import Violation

# What of `agent join` makes sense for a launcher that starts the workers itself.
IN_THE_ENVIRONMENT = (
    *ACCESS_NAMES, "coordinator_grace", "labels", "local_addr", "name", "port_range", "use_proxy",
)  # fmt: skip
_TOKENS = frozenset({"token", "token_file"})


def client_config(launcher: str, given: dict[str, Any]) -> AgentConfig:
    """Return the settings, checked. Raises ``InvalidConfiguration``, a ``ValueError``."""
    declared, violations = settings.settings_of(AgentConfig), []
    values = dict(given)
    for name in IN_THE_ENVIRONMENT:
        text = os.environ.get(declared[name].variable, "")
        if not text or name in given or (name in _TOKENS and not _TOKENS.isdisjoint(given)):
            continue
        try:
            values[name] = declared[name].kind.parse(text)
        except ValueError as error:
            shown = "a text that is not shown" if declared[name].kind.is_secret else text
            violations.append(Violation(declared[name].variable, shown, str(error)))
    if not violations:
        program = Program("function", launcher)
        config = AgentConfig(**values, program=program)
        read, violations = settings.read_settings(config)
        if not violations:
            config = AgentConfig(**values | {name: read[name] for name in values}, program=program)
            violations = config.validate()
    if violations:
        raise InvalidConfiguration(tuple(violations))
    return config
