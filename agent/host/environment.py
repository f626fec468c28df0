"""Shell. The environment that workers inherit from this process."""

import os


def inherited_environment() -> dict[str, str]:
    """Return what workers inherit of this process's environment: all but the agent's own options.

    An ``agent join`` within a worker must not take the outer one's settings for its own.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("DRUMBEAT_")}
