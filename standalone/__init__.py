"""One machine, one command: an agent with a coordinator inside it.

The only package that imports both ``agent`` and ``coordinator``.
"""

from standalone.embedded import run

__all__ = ["run"]
