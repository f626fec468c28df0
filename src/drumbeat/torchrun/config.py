"""Pure. What `--rdzv-conf` may say, as settings of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumbeat.access.settings import ACCESS_NAMES
from drumbeat.agent.settings.launch_config import value_from_text

CLOSE_TIMEOUT_S = 30.0
# Keys, and the settings that they are. A token in a command line is seen by all users of the host,
# so DRUMBEAT_TOKEN or a file has it.
KEYS = {
    "join_timeout": "join_timeout",
    "last_call_timeout": "last_call",
    "coordinator_grace": "coordinator_grace",
    "close_timeout": "exit_barrier_timeout",  # for its kind: the run has that of all
    "name": "name",
    "port_range": "port_range",
    **{name: name for name in ACCESS_NAMES if name != "token"},
}


def client_settings(conf: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return settings of the client, and how long a shutdown may take.

    ``timeout`` is passed over, for torchrun always adds it. Raises ``ValueError``.
    """
    given = {key: str(value) for key, value in conf.items() if key != "timeout"}
    if unknown := sorted(given.keys() - KEYS):
        allowed = ", ".join(sorted(KEYS))
        raise ValueError(f"--rdzv-conf: {', '.join(unknown)} is not known, allowed are {allowed}")
    settings = {
        KEYS[key]: value_from_text(KEYS[key], text, f"--rdzv-conf {key}")
        for key, text in given.items()
    }
    return settings, float(settings.pop(KEYS["close_timeout"], CLOSE_TIMEOUT_S))
