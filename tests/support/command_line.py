"""The command line of ``agent join``, without the agent that it starts."""

import io
from contextlib import redirect_stderr

from drumbeat.agent import cli
from drumbeat.agent.settings.config import AgentConfig

SCRIPT = "train.py"


def join(*argv: str, script: str | None = SCRIPT) -> AgentConfig:
    """Return what the agent is told by a command line with a script at its end."""
    configs: list[AgentConfig] = []

    def run(config: AgentConfig) -> int:
        configs.append(config)
        return 0

    assert cli.main(["join", *argv, *([script] if script else ())], run=run) == 0
    (config,) = configs
    return config


def refused(*argv: str, script: str | None = SCRIPT) -> str:
    """Return what is said of a command line that is refused: errors, then one hint."""

    def run(_config: AgentConfig) -> int:
        raise AssertionError("it was not refused")

    with redirect_stderr(io.StringIO()) as stderr:
        assert cli.main(["join", *argv, *([script] if script else ())], run=run) == 2
    *errors, hint = stderr.getvalue().splitlines()
    assert errors
    assert errors[0].startswith("agent: error: ")
    assert hint.startswith("agent: hint: ")
    return stderr.getvalue()
