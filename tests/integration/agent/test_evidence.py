"""Evidence of a worker's end, read from kernel files that the test wrote."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.agent.failures.evidence import (
    LOG_BYTES_MAX,
    LOG_LINES_MAX,
    Explainer,
    KernelLog,
)
from drumbeat.agent.failures.exit_status import ExitEvidence

PID = 4321
V1_NO_LIMIT = "9223372036854771712"


class Kernel:
    """The files of a host, below a directory."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.log = directory / "dev" / "kmsg"
        (directory / "dev" / "shm").mkdir(parents=True)
        self.write("proc/vmstat", "nr_free_pages 17\noom_kill 3\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def say(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(text)

    def unified(self, name: str, oom_kills: int, *, pid: int | str = "self") -> None:
        self.write(f"proc/{pid}/cgroup", f"0::/{name}\n")
        self.write(f"sys/fs/cgroup/{name}/memory.events", f"max 9\noom 1\noom_kill {oom_kills}\n")
        self.write(f"sys/fs/cgroup/{name}/memory.max", "1073741824\n")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.fixture
def explainers() -> Iterator[list[Explainer]]:
    made: list[Explainer] = []
    yield made
    for explainer in made:
        explainer.close()


def begun(kernel: Kernel, explainers: list[Explainer], script: str | None = None) -> Explainer:
    explainer = Explainer(script, kernel.root)
    explainers.append(explainer)
    explainer.begin_round()
    return explainer


def ended(exit_code: int, pid: int, *, has_stacks: bool = False) -> ExitEvidence:
    return ExitEvidence(exit_code=exit_code, pid=pid, has_stacks=has_stacks)


def killed(explainer: Explainer, pid: int = PID) -> str:
    return explainer.explain(ended(-9, pid))


def test_a_kill_in_the_workers_own_cgroup_counts_from_the_rounds_start(
    kernel: Kernel, explainers: list[Explainer]
) -> None:
    kernel.unified("agent", 0)
    kernel.unified("job/worker", 5, pid=PID)
    explainer = begun(kernel, explainers)
    explainer.note_workers([PID])
    assert killed(explainer).startswith("no sign of")
    kernel.unified("job/worker", 6, pid=PID)
    # Its own directory in /proc is gone by then.
    (kernel.root / "proc" / str(PID) / "cgroup").unlink()
    text = killed(explainer)
    assert "it killed 1 process of cgroup /job/worker with its limit of 1.0 GiB" in text
    explainer.begin_round()
    explainer.note_workers([PID])
    assert killed(explainer).startswith("no sign of"), "that was the round before"


def test_a_worker_that_was_gone_too_soon_is_looked_for_where_its_agent_is(
    kernel: Kernel, explainers: list[Explainer]
) -> None:
    kernel.unified("agent", 1)
    explainer = begun(kernel, explainers)
    kernel.unified("agent", 2)
    assert "cgroup /agent" in killed(explainer)


def test_the_agents_own_cgroup_for_workers_is_accounted_for_by_the_one_above(
    kernel: Kernel, explainers: list[Explainer]
) -> None:
    kernel.unified("job", 1)
    kernel.write(f"proc/{PID}/cgroup", "0::/job/drumbeat-0-5fe1-x\n")
    explainer = begun(kernel, explainers)
    explainer.note_workers([PID])
    kernel.unified("job", 2)
    assert "it killed 1 process of cgroup /job with" in killed(explainer)


@pytest.mark.parametrize("name", ["only/the/host/knows", "../../outside"])
def test_a_container_sees_its_cgroup_as_the_root(
    kernel: Kernel, explainers: list[Explainer], name: str
) -> None:
    kernel.write("proc/self/cgroup", f"0::/{name}\n")
    kernel.write("sys/fs/cgroup/memory.events", "oom_kill 1\n")
    explainer = begun(kernel, explainers)
    kernel.write("sys/fs/cgroup/memory.events", "oom_kill 2\n")
    assert "it killed 1 process of cgroup" in killed(explainer)


@pytest.mark.parametrize("has_counter", [True, False])
def test_version_1_of_cgroups(
    kernel: Kernel, explainers: list[Explainer], has_counter: bool
) -> None:
    def write(kills: int, hits: int) -> None:
        counter = f"oom_kill {kills}\n" if has_counter else ""
        kernel.write("sys/fs/cgroup/memory/job/memory.oom_control", f"under_oom 0\n{counter}")
        kernel.write("sys/fs/cgroup/memory/job/memory.failcnt", f"{hits}\n")

    kernel.write("proc/self/cgroup", "5:cpu:/job\n4:memory,hugetlb:/job\n0::/\n")
    kernel.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", V1_NO_LIMIT)
    write(0, 10)
    explainer = begun(kernel, explainers)
    write(2, 15)
    text = killed(explainer)
    if has_counter:
        assert "it killed 2 processes of cgroup /job since" in text
    else:
        assert "cgroup /job hit its memory limit 5 times" in text


# What a container of a pod sees of its cgroup, and whether its limit has to be found at the root.
PODS = {
    "version 2": ("0::/\n", "memory.events", "memory.max"),
    "version 2, the host's name": (
        "0::/kubepods.slice/kubepods-pod1f.slice/cri-containerd-9c.scope\n",
        "memory.events",
        "memory.max",
    ),
    "version 1": (
        "5:cpu:/kubepods/pod1f/9c\n4:memory:/kubepods/pod1f/9c\n",
        "memory/memory.oom_control",
        "memory/memory.limit_in_bytes",
    ),
}


@pytest.mark.parametrize(("membership", "counter", "limit"), PODS.values(), ids=PODS)
def test_a_pod_is_told_the_limit_of_its_container(
    kernel: Kernel, explainers: list[Explainer], membership: str, counter: str, limit: str
) -> None:
    kernel.write("proc/self/cgroup", membership)
    kernel.write(f"proc/{PID}/cgroup", membership)
    kernel.write(f"sys/fs/cgroup/{limit}", f"{16 * 2**30}\n")
    kernel.write(f"sys/fs/cgroup/{counter}", "oom_kill 0\n")
    explainer = begun(kernel, explainers)
    explainer.note_workers([PID])
    kernel.write(f"sys/fs/cgroup/{counter}", "oom_kill 1\n")
    text = killed(explainer)
    assert "it killed 1 process of cgroup /" in text
    assert "with its limit of 16.0 GiB" in text


def test_a_kill_anywhere_on_the_host(kernel: Kernel, explainers: list[Explainer]) -> None:
    explainer = begun(kernel, explainers)
    kernel.write("proc/vmstat", "oom_kill 4\n")
    assert "it killed 1 process of this host" in killed(explainer)


def test_a_host_that_tells_nothing(tmp_path: Path, explainers: list[Explainer]) -> None:
    bare = tmp_path / "none"
    explainer = Explainer(None, bare)
    explainers.append(explainer)
    explainer.begin_round()
    assert "the agent may not see" in killed(explainer)
    assert "--shm-size" in explainer.explain(ended(-7, 1))


@pytest.mark.parametrize("content", ["", "oom_kill", "oom_kill x\n", "\0\xff\n", "oom_kill 1e9\n"])
def test_files_of_another_form_harm_nobody(
    kernel: Kernel, explainers: list[Explainer], content: str
) -> None:
    kernel.write("proc/vmstat", content)
    kernel.write("proc/self/cgroup", f"0::/job\n{content}")
    kernel.write("sys/fs/cgroup/job/memory.events", content)
    assert killed(begun(kernel, explainers))


def test_the_kernel_log_counts_from_the_rounds_start(
    kernel: Kernel, explainers: list[Explainer]
) -> None:
    kernel.say(f"Killed process {PID} (python) long ago\n")
    explainer = begun(kernel, explainers)
    assert killed(explainer).startswith("no sign of")
    kernel.say("6,812,99,-;Out of memory: Killed process 4321 (python) total-vm:9kB\n KEY=x\n")
    text = killed(explainer)
    assert text == (
        "the kernel's out-of-memory killer killed it: "
        "'Out of memory: Killed process 4321 (python) total-vm:9kB'"
    )
    assert killed(explainer) == text, "also for the second one who asks"
    assert "'Out of memory: Killed process 4321" in killed(explainer, pid=9), "perhaps the same"


def test_a_segfault_in_the_kernel_log(kernel: Kernel, explainers: list[Explainer]) -> None:
    kernel.say("")
    explainer = begun(kernel, explainers)
    kernel.say(f"4,1,2,-;python[{PID}]: segfault at 0 ip 0 sp 0 error 4 in libtorch.so\n")
    text = explainer.explain(ended(-11, PID))
    assert "in libtorch.so" in text


def test_reading_the_kernel_log_is_bounded_and_never_waits(kernel: Kernel) -> None:
    os.mkfifo(kernel.log)
    writer = os.open(kernel.log, os.O_RDWR | os.O_NONBLOCK)
    log = KernelLog(kernel.log)
    try:
        assert log.lines() == ()  # somebody could write, and nobody does
    finally:
        log.close()
        os.close(writer)
    kernel.log.unlink()
    kernel.say("")
    log = KernelLog(kernel.log)
    try:
        line = "4,1,2,-;x[7]: trap\n"
        kernel.say(line * (2 * LOG_BYTES_MAX // len(line)))
        kernel.say("Killed process 8 (y)\n")
        lines = log.lines()
        assert lines is not None
        assert len(lines) == LOG_LINES_MAX
        assert {line.pid for line in lines} == {7}, "what is beyond the bound is passed over"
        kernel.say("Killed process 9 (z)\n")
        lines = log.lines()
        assert lines is not None
        assert lines[-1].pid == 9
    finally:
        log.close()
    assert log.lines() is None


def test_a_script_that_vanished(
    kernel: Kernel, explainers: list[Explainer], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    explainer = begun(kernel, explainers, str(script))
    there = explainer.explain(ended(2, PID))
    script.unlink()
    gone = explainer.explain(ended(2, PID))
    assert str(script) not in there
    assert gone.startswith(f"Python could not open {script}")
    module = begun(kernel, explainers)
    assert "open" not in module.explain(ended(2, PID))


def test_a_crash_whose_stacks_are_all_there_is_no_exception(
    kernel: Kernel, explainers: list[Explainer]
) -> None:
    explainer = begun(kernel, explainers)
    text = explainer.explain(ended(-11, PID, has_stacks=True))
    assert "stacks of that moment are in the traceback" in text
    folded = explainer.explain(ended(1, PID, has_stacks=True))
    assert "raised an exception" not in folded


def test_this_very_host_has_an_answer() -> None:
    explainer = Explainer()
    try:
        explainer.begin_round()
        explainer.note_workers([os.getpid()])
        for code in (-9, -7, -11, 1, 2, 137):
            assert explainer.explain(ended(code, os.getpid()))
    finally:
        explainer.close()
