"""Shell. The command ``agent``."""

import gc
import sys
from collections.abc import Sequence
from importlib import import_module

from drumbeat.agent import cli
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.command import loading
from drumbeat.command.console import open_missing


def main(argv: Sequence[str] | None = None, *, path: str = "agent") -> int:
    """Run the command with the real driver; arguments as in ``options.run``."""
    open_missing()
    return cli.main(argv, run=run, path=path)


def run(config: AgentConfig) -> int:
    """Run an agent, alone or with others; return the exit code. Raises ``AgentError``."""
    # Nor does a wrong command line start a supervisor.
    from drumbeat.agent.workers.supervisor import launch  # noqa: PLC0415

    launch.launch_early()
    # Imported late: grpc takes longer to import than a wrong command line to refuse.
    # By name: only ``drumbeat.standalone`` may know both sides, and the agent none of them.
    with loading.without_collections():
        if not config.is_standalone:
            loading.load_grpc_quietly()
        driver = import_module(
            "drumbeat.standalone" if config.is_standalone else "drumbeat.agent.runtime.driver"
        )
    gc.freeze()  # nor is it ever looked at again: it stays to the end
    exit_code: int = driver.run(config)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
