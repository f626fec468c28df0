"""The entry point of ``agent``: which driver a configuration leads to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import structlog

from drumbeat.agent import __main__ as entry
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.workers.supervisor import launch


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside, and logging as it was."""
    for name in list(os.environ):
        if name.startswith("DRUMBEAT_"):
            monkeypatch.delenv(name)
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("mode", "chosen"),
    [
        (["--standalone"], "drumbeat.standalone"),
        (["--coordinator", "head"], "drumbeat.agent.runtime.driver"),
    ],
)
def test_the_mode_chooses_the_driver(
    mode: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are replaced by modules that only tell their name and what they were given."""
    calls: list[tuple[str, AgentConfig]] = []
    early: list[str] = []
    monkeypatch.setattr(launch, "launch_early", lambda: early.append("supervisor"))
    for name in ("drumbeat.standalone", "drumbeat.agent.runtime.driver"):
        module = ModuleType(name)

        def run(config: AgentConfig, name: str = name) -> int:
            calls.append((name, config))
            return 7

        module.__dict__["run"] = run
        monkeypatch.setitem(sys.modules, name, module)
    assert entry.main(["join", *mode, "--no-python", "sh"]) == 7
    ((name, config),) = calls
    assert (early, name) == (["supervisor"], chosen)
    assert config.is_standalone == (chosen == "drumbeat.standalone")


@pytest.mark.slow
def test_an_agent_that_is_alone_loads_nothing_of_the_way_to_others() -> None:
    code = (
        "import drumbeat.standalone, sys\n"
        "needless = {'cryptography', 'drumbeat.access.client', 'drumbeat.agent.session.access',"
        " 'drumbeat.agent.settings.launch_config', 'drumbeat.coordinator.config',"
        " 'drumbeat.coordinator.api.query_service',"
        " 'drumbeat.coordinator.observe.messages'}\n"
        "assert not needless & set(sys.modules), needless & set(sys.modules)\n"
    )
    root = Path(entry.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root
    )
    assert (done.returncode, done.stderr) == (0, "")
