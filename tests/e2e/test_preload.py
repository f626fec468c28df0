"""Workers that find imported what they need, with the commands that users type."""

import pytest

from tests.support.cluster import Cluster
from tests.support.launches import run

SCRIPT = """
import os, sys
warm = "heavy" in sys.modules
import heavy
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"rank {rank}, restart {restart}: {warm} {heavy.importer != os.getpid()}\\n".encode())
if restart == "0":
    sys.exit(int(rank))
"""


def test_a_restart_imports_nothing_again(cluster: Cluster) -> None:
    """A module of the script's own folder, and both rounds forked from what has imported it."""
    (cluster.directory / "heavy.py").write_text("import os\nimporter = os.getpid()\n")
    script = cluster.directory / "work.py"
    script.write_text(SCRIPT)
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    agent = cluster.agent(*options, "--preload", "heavy", str(script))
    assert agent.wait() == 0
    expected = [f"rank {rank}, restart {n}: True True" for n in (0, 1) for rank in (0, 1)]
    assert sorted(agent.stdout.splitlines()) == sorted(expected)
    assert "preloaded 1 modules" in agent.stderr


@pytest.mark.slow
def test_functions_find_modules_preloaded_too(cluster: Cluster) -> None:
    """A module that is found where the program that launches them finds it."""
    (cluster.directory / "heavy.py").write_text("import os\nimporter = os.getpid()\n")
    run(
        cluster,
        """
        def work():
            is_warm = "heavy" in sys.modules
            import heavy
            return is_warm, heavy.importer != os.getpid()

        values = drumbeat.launch(config(preload=["heavy"]), work)()
        assert values == {0: (True, True), 1: (True, True)}, values
        """,
    )
