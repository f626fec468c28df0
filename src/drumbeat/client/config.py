"""Shell. The settings of a client: what its launcher gives, else the variables of `agent join`."""

from __future__ import annotations

import os
from typing import Any

from drumbeat.access.settings import ACCESS_NAMES
from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.launch_config import LaunchConfig, value_from_text
from drumbeat.command.settings import settings_of

_SETTINGS = settings_of(LaunchConfig)
# Settings of `agent join` that make sense for a launcher that starts the workers itself.
IN_THE_ENVIRONMENT = (
    *ACCESS_NAMES, "coordinator_grace", "labels", "local_addr", "name", "port_range", "use_proxy",
)  # fmt: skip


def client_config(launcher: str, given: dict[str, Any]) -> AgentConfig:
    """Return the settings, checked. Raises ``ValueError``, which names the setting."""
    values = {"nproc_per_node": 1, **given, "max_restarts": 0}
    has_token = not given.keys().isdisjoint(("token", "token_file"))
    for name in IN_THE_ENVIRONMENT:
        variable = _SETTINGS[name].variable
        is_given = name in given or (has_token and name.startswith("token"))
        if not is_given and (text := os.environ.get(variable)):
            values[name] = value_from_text(name, text, variable)
    config = LaunchConfig(**values).agent_config(Program("function", launcher))
    if violations := config.validate():
        raise InvalidConfiguration(tuple(violations))
    return config
