"""Shell. The agent: owns one host's worker group, for one run.

What programs may ask of the package itself is loaded when it is first asked for: the supervisor
imports the package too, and has to stay small. See ``docs/architecture.md``.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.launching.launch import elastic_launch, launch, launch_agent
    from agent.settings.launch_config import LaunchConfig

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]


def __getattr__(name: str) -> object:
    """Load what was asked for. Python calls this once per name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.platform != "linux":
        raise ImportError(f"agent.{name}: this system is {sys.platform!r}, allowed is 'linux'")
    home = "agent.settings.launch_config" if name == "LaunchConfig" else "agent.launching.launch"
    found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found
