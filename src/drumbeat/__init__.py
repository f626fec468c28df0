"""Shell. Control plane of elastic training: ``launch``, and what the packages below share.

What programs may ask of the package itself is loaded when it is first asked for: the supervisor
and the SDK import the package too, and have to stay small. See ``docs/architecture.md``.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drumbeat.agent.launching.launch import elastic_launch, launch, launch_agent
    from drumbeat.agent.settings.launch_config import LaunchConfig

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]

VERSION = "0.1.0"
"""Of the distribution; agents and coordinators tell it to each other."""


def __getattr__(name: str) -> object:
    """Load what was asked for. Python calls this once per name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.platform != "linux":
        raise ImportError(f"drumbeat.{name}: this system is {sys.platform!r}, allowed is 'linux'")
    is_config = name == "LaunchConfig"
    home = "settings.launch_config" if is_config else "launching.launch"
    value: object = getattr(import_module(f"drumbeat.agent.{home}"), name)
    globals()[name] = value
    return value
