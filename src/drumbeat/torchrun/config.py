"""Pure. What `--rdzv-conf` may say, as settings of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumbeat.access.settings import ACCESS_NAMES
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.command.settings import seconds, settings_of

CLOSE_TIMEOUT_S = 30.0
# Keys, and the settings that they are. torch's own come first.
KEYS = {
    "join_timeout": "join_timeout",
    "last_call_timeout": "last_call",
    "coordinator_grace": "coordinator_grace",
    "name": "name",
    "port_range": "port_range",
    # A token in a command line is seen by all users of the host: DRUMBEAT_TOKEN or a file has it.
    **{name: name for name in ACCESS_NAMES if name != "token"},
}
_CLOSE, _LEGACY = "close_timeout", "timeout"


def client_settings(conf: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return settings of the client, and how long a shutdown may take.

    torchrun always adds ``timeout``, which means the same as ``join_timeout`` where it was given,
    and nothing of ours where torch's c10d has no use for it either. Raises ``ValueError``.
    """
    allowed = sorted({*KEYS, _CLOSE})
    if unknown := sorted(conf.keys() - {*allowed, _LEGACY}):
        listed = ", ".join(allowed)
        raise ValueError(f"--rdzv-conf: {', '.join(unknown)} is not known, allowed are {listed}")
    declared = settings_of(AgentConfig)
    kinds = {key: declared[name].kind for key, name in KEYS.items()} | {_CLOSE: seconds()}
    values: dict[str, Any] = {}
    for key, value in conf.items():
        if key == _LEGACY:
            continue
        try:
            values[key] = kinds[key].parse(str(value))
        except ValueError as error:
            raise ValueError(f"--rdzv-conf {key}: {error}") from None
    close_s = float(values.pop(_CLOSE, CLOSE_TIMEOUT_S))
    return {KEYS[key]: value for key, value in values.items()}, close_s
