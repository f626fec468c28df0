"""Workers that find imported what they need, with the commands that users type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.cluster import DEADLINE_S
from tests.support.launches import run
from tests.support.waiting import wait_until_sync

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = pytest.mark.e2e

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


def test_what_can_not_be_preloaded_is_told_and_the_job_runs(cluster: Cluster) -> None:
    script = cluster.directory / "work.py"
    script.write_text("print('done')")
    agent = cluster.agent("--standalone", "--preload", "os.missing", str(script))
    assert agent.wait() == 0
    why = "ModuleNotFoundError: No module named 'os.missing'; 'os' is not a package"
    assert f"workers start without preloading: importing os.missing failed: {why}" in agent.stderr


def test_a_program_of_its_own_can_not_be_preloaded_for(cluster: Cluster) -> None:
    agent = cluster.agent("--standalone", "--no-python", "--preload", "torch", "true")
    assert agent.wait() == 2
    assert "--preload: true is a program of its own" in agent.stderr


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


@pytest.mark.parametrize("victims", [("agent",), ("agent", "supervisor")])
def test_a_killed_agent_leaves_no_template_and_no_worker(
    cluster: Cluster, victims: tuple[str, ...]
) -> None:
    script = cluster.directory / "work.py"
    script.write_text(
        "import os, time\n"
        "os.write(1, f'worker {os.environ[\"RANK\"]} waits\\n'.encode())\n"
        "time.sleep(1000)\n"
    )
    options = ("--standalone", "--nproc-per-node", "2", "--preload", "wave")
    agent = cluster.agent(*options, str(script))
    for rank in range(2):
        agent.wait_for_line(f"worker {rank} waits")
    process = psutil.Process(agent.pid)
    [supervisor] = process.children()
    # The one that forked the workers ends as they begin.
    wait_until_sync(lambda: len(supervisor.children(recursive=True)) == 3, DEADLINE_S)
    below = supervisor.children(recursive=True)
    assert [each.name() for each in below].count("worker template") == 1
    process.suspend()
    if "supervisor" in victims:
        supervisor.kill()
    process.kill()
    gone, alive = psutil.wait_procs(below, timeout=DEADLINE_S)
    assert (len(gone), alive) == (3, [])


LIBRARY = {
    "__init__": "from library import strategy",
    "strategy": "import heavy\nfrom library.ranks import rank",
    "ranks": "import os\nrank = int(os.environ.get('LOCAL_RANK', -1))",
}


def test_a_library_that_reads_the_rank_leaves_the_rest_preloaded(cluster: Cluster) -> None:
    """As Lightning does: from the first round on, and no advice to preload what can't be."""
    folder = cluster.directory / "library"
    folder.mkdir()
    for name, text in LIBRARY.items():
        (folder / f"{name}.py").write_text(f"{text}\nimport time\ntime.sleep(0.05)\n")
    (cluster.directory / "heavy.py").write_text("")
    script = cluster.directory / "work.py"
    script.write_text(
        "import os, sys\nfound = [name in sys.modules for name in ('heavy', 'library')]\n"
        "import library\nos.environ['LATE'] = '1'\n"
        "os.write(1, f'{library.strategy.rank} {found}\\n'.encode())\n"
    )
    options = ("--standalone", "--nproc-per-node", "2", "--preload", "heavy,library")
    agent = cluster.agent(*options, str(script))
    assert agent.wait() == 0
    assert sorted(agent.stdout.splitlines()) == ["0 [True, False]", "1 [True, False]"]
    why = "library.ranks read LOCAL_RANK when it was imported, and each worker has its own"
    assert f"library not preloaded, but imported by each worker: {why}" in agent.stderr
    assert "workers still import" not in agent.stderr
    assert "without preloading" not in agent.stderr
