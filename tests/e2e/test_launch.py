"""``drumbeat.launch``: functions and commands as jobs, from programs and notebooks.

Each test runs a program of its own, so that functions are those of a script's ``__main__``.
"""

import re
import signal
from textwrap import dedent

import psutil
import pytest

from tests.support.cluster import Cluster
from tests.support.launches import HEAD, check_nothing_left, run
from tests.support.waiting import MS

pytestmark = pytest.mark.timeout(300)

TORCH_S = 120_000 * MS


def test_values_return_by_rank(cluster: Cluster) -> None:
    """Of any size, and also those of types that only the script knows."""
    run(
        cluster,
        """
        from dataclasses import dataclass

        @dataclass
        class Shard:
            data: bytes

        FACTOR = 3

        def work(start):
            rank = int(os.environ["RANK"])
            return Shard(bytes([start + rank * FACTOR]) * 20_000_000)

        values = drumbeat.launch(config(), work)(7)
        assert list(values) == [0, 1]
        assert values[1] == Shard(bytes([10]) * 20_000_000)
        assert values[0].data[:2] == bytes([7, 7])
        """,
    )


@pytest.mark.slow
def test_lambdas_closures_and_functions_of_modules(cluster: Cluster) -> None:
    """The last by reference: a worker finds modules where the script does, its folder too."""
    (cluster.directory / "mine.py").write_text("def twice(x): return 2 * x\n")
    run(
        cluster,
        """
        import mine
        def made(offset):
            def add(x):
                return x + offset + mine.twice(1)
            return add

        assert drumbeat.launch(config(), lambda x: x * 2)(4) == {0: 8, 1: 8}
        assert drumbeat.launch(config(1), made(5))(1) == {0: 8}
        assert drumbeat.elastic_launch(config(1), mine.twice)(3) == {0: 6}
        assert drumbeat.launch(config(1), lambda: sys.argv[1:])() == {0: ["--mine"]}
        assert drumbeat.launch(config(1), lambda: sys.exit(0))() == {0: None}
        """,
        "--mine",
    )


def test_a_folder_called_agent_belongs_to_the_user(cluster: Cluster) -> None:
    """The function imports the user's package, though ours has run it."""
    (cluster.directory / "place" / "agent").mkdir(parents=True)
    (cluster.directory / "place" / "agent" / "__init__.py").write_text("NAME = 'theirs'\n")
    run(
        cluster,
        """
        def work():
            import agent as theirs
            return theirs.NAME

        sys.path.insert(0, "place")
        assert drumbeat.launch(config(1), work)() == {0: "theirs"}
        """,
    )


def test_a_notebook_cell(cluster: Cluster) -> None:
    """A cell is run within a running loop, and its functions exist nowhere else."""
    run(
        cluster,
        '''
        import asyncio

        CELL = """
        def work(x):
            return x + int(os.environ["RANK"])

        values = drumbeat.launch(config(), work)(1)
        """

        async def kernel():
            from textwrap import dedent
            exec(compile(dedent(CELL), "<cell>", "exec"), vars(sys.modules["__main__"]))

        asyncio.run(kernel())
        assert values == {0: 1, 1: 2}
        ''',
    )


@pytest.mark.slow
def test_a_command_has_no_values(cluster: Cluster) -> None:
    run(
        cluster,
        """
        from pathlib import Path
        code = "import os, sys, pathlib; pathlib.Path(os.environ['RANK']).write_text(sys.argv[1])"
        assert drumbeat.launch(config(), sys.executable)("-c", code, 5) == {0: None, 1: None}
        assert Path("1").read_text() == "5"
        assert drumbeat.launch_agent(config(), "true", []) == {0: None, 1: None}
        try:
            drumbeat.launch(config(), "no-such-program")()
        except AgentError as error:
            assert "there is no such program on PATH" in str(error)
        """,
    )


def test_an_exception_is_the_root_cause(cluster: Cluster) -> None:
    process = run(
        cluster,
        """
        def work():
            if os.environ["RANK"] == "1":
                raise ValueError("no such shard")
            time.sleep(600)

        error = failure_of(drumbeat.launch(config(), work))
        assert list(error.failures) == [1]
        rank, failure = error.get_first_failure()
        assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
        inner = failure.error_file_data["message"]
        assert inner["message"] == "ValueError: no such shard"
        assert 'raise ValueError("no such shard")' in inner["extraInfo"]["py_callstack"]
        assert "work FAILED" in str(error) and "no such shard" in str(error)
        """,
    )
    assert "rank 1 failed: exit code 1" in process.stderr
    assert "rank 0 failed" not in process.stderr, "it is a victim"


@pytest.mark.slow
def test_exit_codes_and_signals(cluster: Cluster) -> None:
    run(
        cluster,
        """
        error = failure_of(drumbeat.launch(config(1), lambda: sys.exit(7)))
        assert error.failures[0].exitcode == 7
        error = failure_of(drumbeat.launch(config(1), lambda: os.kill(os.getpid(), 9)))
        assert error.failures[0].exitcode == -9
        assert error.failures[0].signal_name() == "SIGKILL"
        """,
    )


@pytest.mark.slow
def test_what_fails_first_may_succeed_after_a_restart(cluster: Cluster) -> None:
    """Values are those of the last round only."""
    run(
        cluster,
        """
        def work(until):
            count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            if count < until and os.environ["RANK"] == "0":
                raise RuntimeError(f"failed at {count}")
            return count

        assert drumbeat.launch(config(max_restarts=2), work)(1) == {0: 1, 1: 1}
        error = failure_of(drumbeat.launch(config(max_restarts=1), work), 9)
        assert "failed at 1" in str(error)
        """,
    )


def test_what_cannot_be_pickled_is_said(cluster: Cluster) -> None:
    """An argument at once, a return value as the failure of its worker."""
    run(
        cluster,
        """
        try:
            drumbeat.launch(config(), print)(threading.Lock())
        except AgentError as error:
            assert "print or its arguments cannot be handed to workers: TypeError" in str(error)
        else:
            raise AssertionError("a lock was handed over")
        error = failure_of(drumbeat.launch(config(1), lambda: threading.Lock()))
        assert "the return value, a lock, cannot be pickled" in str(error)
        """,
    )


def test_a_value_that_cannot_be_read_is_said(cluster: Cluster) -> None:
    run(
        cluster,
        """
        def breaks():
            raise OSError("not here")

        class Odd:
            def __reduce__(self):
                return breaks, ()

        try:
            drumbeat.launch(config(1), lambda: Odd())()
        except AgentError as error:
            text = "the return value of rank 0 cannot be read here: OSError: not here"
            assert str(error) == text, error
        else:
            raise AssertionError("it was read")
        """,
    )


def test_an_interrupt_stops_the_workers_first(cluster: Cluster) -> None:
    """And the signal handlers of the program are as before, also during the call."""
    process = cluster.script(
        HEAD
        + dedent(
            """
            import signal

            def work():
                say(f"working as {os.getpid()}")
                time.sleep(600)

            # Whoever runs these tests in the background has it ignored from the start.
            before = signal.default_int_handler
            signal.signal(signal.SIGINT, before)
            try:
                drumbeat.launch(config(), work)()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            assert signal.getsignal(signal.SIGINT) is before
            """
        )
    )
    pid = int(process.wait_for_line(r"working as (\d+)", count=2)[1])
    process.send(signal.SIGINT)
    assert process.wait() == 0, process.log()
    assert "interrupted" in process.stdout
    assert not psutil.pid_exists(pid)
    check_nothing_left(cluster)


def test_the_workers_end_with_the_program(cluster: Cluster) -> None:
    """It is killed, and can clean nothing up itself."""
    process = cluster.script(
        HEAD
        + dedent(
            """
            def work():
                say("working")
                time.sleep(600)

            drumbeat.launch(config(), work)()
            """
        )
    )
    process.wait_for_line("working", count=2)
    process.kill()
    check_nothing_left(cluster)


def test_a_killed_agent_is_told(cluster: Cluster) -> None:
    run(
        cluster,
        """
        import psutil

        def work(launcher):
            [process] = psutil.Process(launcher).children()
            process.kill()
            time.sleep(600)

        try:
            drumbeat.launch(config(1), work)(os.getpid())
        except AgentError as error:
            assert "the agent's process was ended by SIGKILL" in str(error)
        else:
            raise AssertionError("it goes on without its agent")
        """,
    )


def test_two_launches_at_once_in_threads(cluster: Cluster) -> None:
    """Each worker waits until that of the other job has come."""
    run(
        cluster,
        """
        from concurrent.futures import ThreadPoolExecutor

        def work(mode):
            open("meeting", mode).close()
            return mode

        os.mkfifo("meeting")
        with ThreadPoolExecutor(2) as pool:
            assert [*pool.map(drumbeat.launch(config(1), work), "rw")] == [{0: "r"}, {0: "w"}]
        """,
    )


def test_no_child_or_variable_of_the_program_is_touched(cluster: Cluster) -> None:
    run(
        cluster,
        """
        import subprocess
        os.environ["DRUMBEAT_MAX_RESTARTS"] = "nonsense"
        os.environ["DRUMBEAT_COORDINATOR"] = "nowhere:1"
        before = dict(os.environ)
        child = subprocess.Popen(["sleep", "600"])
        assert drumbeat.launch(config(1), lambda: 1)() == {0: 1}
        assert child.poll() is None and dict(os.environ) == before
        assert threading.active_count() == 1
        child.kill()
        assert child.wait() == -9
        """,
    )


def test_importing_the_package_stays_light(cluster: Cluster) -> None:
    """The supervisor does it too."""
    run(
        cluster,
        """
        import subprocess
        code = (
            "import drumbeat, sys; "
            "print({'cloudpickle', 'click', 'grpc', 'asyncio', 'drumbeat.agent'} & {*sys.modules})"
        )
        assert subprocess.check_output([sys.executable, "-P", "-c", code]) == b"set()\\n"
        """,
    )


TWO_HOSTS = """
def work(x):
    rank = int(os.environ["RANK"])
    if rank == x:
        raise ValueError(f"rank {rank} is bad")
    return rank, int(os.environ["WORLD_SIZE"])

job = drumbeat.launch(
    drumbeat.LaunchConfig(
        2, 2, 2, coordinator=sys.argv[1], run_id=sys.argv[2], max_restarts=0, join_timeout=30
    ),
    work,
)
"""


@pytest.mark.usefixtures("shared_coordinator")
def test_two_hosts_each_return_their_own_values(cluster: Cluster) -> None:
    address = cluster.coordinator().address
    text = HEAD + TWO_HOSTS + "print(json.dumps(job(-1)), flush=True)\n"
    hosts = [cluster.script(text, address, cluster.run_id) for _ in range(2)]
    assert [host.wait() for host in hosts] == [0, 0], cluster.logs()
    assert {host.stdout for host in hosts} == {
        '{"0": [0, 4], "1": [1, 4]}',
        '{"2": [2, 4], "3": [3, 4]}',
    }


@pytest.mark.slow
@pytest.mark.usefixtures("shared_coordinator")
def test_the_root_cause_is_known_on_every_host(cluster: Cluster) -> None:
    """Also where no worker has failed by itself."""
    address = cluster.coordinator().address
    text = HEAD + TWO_HOSTS + "print(failure_of(job, 3), flush=True)\n"
    hosts = [cluster.script(text, address, cluster.run_id) for _ in range(2)]
    assert [host.wait() for host in hosts] == [0, 0], cluster.logs()
    for host in hosts:
        assert "ValueError: rank 3 is bad" in host.stdout
        assert re.search(r"rank +: 3 \(local_rank: 1\)", host.stdout)


@pytest.mark.slow
def test_errors_of_the_agent_are_raised(cluster: Cluster) -> None:
    """No coordinator listens there; no other agent comes, also to a second run of the name."""
    coordinator = cluster.coordinator()
    text = """
        from drumbeat.agent.errors import CoordinatorUnreachable, RunFailed

        def raised_by(**more):
            given = {"coordinator": sys.argv[1], "run_id": "r", "join_timeout": 1.5, **more}
            try:
                drumbeat.launch(drumbeat.LaunchConfig(2, 2, 1, **given), lambda: None)()
            except AgentError as error:
                return error

        error = raised_by(coordinator="127.0.0.1:1", join_timeout=0.5)
        assert isinstance(error, CoordinatorUnreachable), repr(error)
        assert "no coordinator answered at 127.0.0.1:1" in str(error)
        for _ in range(2):
            error = raised_by()
            assert isinstance(error, RunFailed), repr(error)
            assert error.run_id == "r" and "run 'r' failed: " in str(error), error
    """
    process = cluster.script(HEAD + dedent(text), coordinator.address)
    assert process.wait() == 0, process.log()
    assert coordinator.terminate() == 0
    check_nothing_left(cluster)


@pytest.mark.slow
@pytest.mark.torch
def test_torch_reduces_between_functions(cluster: Cluster) -> None:
    run(
        cluster,
        """
        def work(value):
            import torch
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel

            dist.init_process_group("gloo")
            rank = dist.get_rank()
            total = torch.tensor([value + rank])
            dist.all_reduce(total)
            model = DistributedDataParallel(torch.nn.Linear(1, 1))
            model(torch.tensor([[float(rank)]])).sum().backward()
            grad = model.module.weight.grad
            dist.destroy_process_group()
            # As in the example: Gloo's threads live as long as cycles refer to the model.
            del model
            gc.collect()
            return int(total), grad

        values = drumbeat.launch(config(), work)(10)
        assert [value[0] for value in values.values()] == [21, 21]
        assert values[0][1] == values[1][1] == 0.5
        """,
        timeout_s=TORCH_S,
    )
