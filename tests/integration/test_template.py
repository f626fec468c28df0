"""Workers that are forked from a template, with real processes."""

import json
import os
import re
import signal
from ctypes.util import find_library
from pathlib import Path

import psutil
import pytest

from drumbeat.agent.model.messages import (
    KillWorkers,
    TemplateNews,
    TemplateReported,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
)
from tests.support.supervision import Harness, await_ended, running
from tests.support.warm import Job, news, stop

IS_WARM = "import sys\nprint('shared' in sys.modules)\n"
OBSERVER = Path(__file__).parents[1] / "support" / "observer.py"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(folder=tmp_path).write(shared="", work=IS_WARM)


def templates(harness: Harness) -> list[psutil.Process]:
    """The children of the supervisor that are no workers."""
    workers = {pid for each in harness.of(WorkersStarted) for pid in each.pids.values()}
    children = psutil.Process(harness.pid).children()
    return [child for child in children if child.pid not in workers]


async def in_both_ways(job: Job, count: int = 1) -> tuple[dict[int, int], dict[int, int]]:
    """Run a job without and with a template; return the exit codes, and leave the output."""
    async with running() as harness:
        cold = await job.run(harness, count=count, kind="cold")
    async with running() as harness:
        harness.client.send(job.preload())
        warm = await job.run(harness, count=count, kind="warm")
        assert next(each.news for each in harness.of(TemplateReported)) is TemplateNews.READY
    return cold, warm


@pytest.mark.parametrize("program", [("work.py", "a", "b c"), ("-m", "package.work", "-x")])
async def test_a_worker_finds_what_a_new_interpreter_finds(
    job: Job, program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a program that writes down all it can see of itself."""
    job.program = program
    job.env = {"PYTHONPATH": str(job.folder / "other"), "PYTHONFAULTHANDLER": "1"}
    text = OBSERVER.read_text()
    job.write({"__init__": "", "work": text}, work=text)
    monkeypatch.chdir(job.folder)
    assert await in_both_ways(job) == ({0: 0}, {0: 0})
    cold, warm = (json.loads(job.output(kind=kind).read_text()) for kind in ("cold", "warm"))
    assert set(cold.pop("modules")) < set(warm.pop("modules"))
    assert warm == cold


ENDS = """
import atexit, faulthandler, os, signal, sys, threading
rank = int(os.environ["RANK"])
atexit.register(print, "first registered, last called")
atexit.register(print, "last registered, first called")
threading.Timer(0.05, print, ["the end of the program waits for this"]).start()
def fail():
    {}["missing"]
match rank:
    case 1: sys.exit(3)
    case 2: sys.exit("a text, so 1")
    case 3: fail()
    case 4: os.kill(os.getpid(), signal.SIGTERM)
    case 5: os._exit(7)
    case 6: os.kill(os.getpid(), signal.SIGINT)
    case 7: faulthandler.enable(); faulthandler._sigsegv()
    case 8: import not_there
    case 9: import broken
print("the end")
"""


async def test_programs_end_as_without_a_template(job: Job) -> None:
    """Exit codes, signals, tracebacks, handlers of exits, threads: ten ways to end."""
    job.write(work=ENDS, broken="def f(:\n")
    cold, warm = await in_both_ways(job, count=10)
    assert warm == cold
    assert (cold[1], cold[2], cold[4], cold[7]) == (3, 1, -signal.SIGTERM, -signal.SIGSEGV)

    def written(kind: str) -> list[str]:
        paths = [job.output(rank, kind, name) for rank in range(10) for name in ("out", "err")]
        return [re.sub(r"0x[0-9a-f]+", "0x", path.read_text()) for path in paths]

    assert written("warm") == written("cold")


CHILDREN = """
import multiprocessing, os, sys
def work(value):
    print(value, multiprocessing.parent_process() is not None, os.environ["RANK"], flush=True)
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        process = context.Process(target=work, args=(method,))
        process.start()
        process.join()
        print(process.exitcode, flush=True)
        with context.Pool(1) as pool:
            print(pool.map(abs, [-1]), flush=True)
"""


async def test_children_of_multiprocessing_work_as_without_a_template(job: Job) -> None:
    job.write(work=CHILDREN, shared="import multiprocessing.pool, multiprocessing.forkserver")
    await in_both_ways(job)
    cold, warm = (job.output(kind=kind).read_text() for kind in ("cold", "warm"))
    assert warm == cold
    assert cold.count("[1]") == 3


async def test_workers_draw_different_numbers(job: Job) -> None:
    pytest.importorskip("numpy")
    job.write(
        shared="import multiprocessing.process, numpy.random, random, uuid",
        work="import numpy, random, multiprocessing as m, uuid, tempfile\n"
        "print(random.random(), numpy.random.rand(), m.current_process().authkey.hex(),\n"
        "      uuid.uuid4(), next(tempfile._get_candidate_names()), sep='\\n')",
    )
    seen: list[str] = []
    async with running() as harness:
        harness.client.send(job.preload())
        for round_id in range(2):
            await job.run(harness, round_id=round_id, count=2)
            for rank in range(2):
                seen += job.output(rank).read_text().splitlines()
    assert len(seen) == len(set(seen)) == 20


LEFT_OUT = {
    "starts_thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        r"importing starts_thread started a thread \(.*\)",
    ),
    "keeps_socket": (
        "import socket\nkept = socket.socket()",
        "importing keeps_socket left a socket open",
    ),
    "keeps_poll": (
        "import select\nkept = select.epoll()",
        r"importing keeps_poll left \[eventpoll\] open",
    ),
    "starts_process": (
        "import subprocess\nkept = subprocess.Popen(['sleep', '1000'])",
        "importing starts_process started a process",
    ),
    "describes_nothing": (
        "class E(Exception):\n    def __str__(self): 1 / 0\nraise E",
        "importing describes_nothing failed: E: ",
    ),
    "divides": ("1 / 0", "importing divides failed: ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(3)", "importing exits failed: SystemExit: 3"),
    "reads_rank": (
        "import os\nrank = int(os.environ.get('RANK', 0))",
        "reads_rank read RANK when it was imported",
    ),
}
if os.access("/dev/fuse", os.R_OK):
    LEFT_OUT["keeps_device"] = (
        "kept = open('/dev/fuse')",
        "importing keeps_device opened the device /dev/fuse",
    )


async def test_what_must_not_be_forked_is_left_out_and_named(job: Job) -> None:
    job.modules = ("shared", *LEFT_OUT)
    job.write(None, **{name: source for name, (source, _) in LEFT_OUT.items()})
    job.write(work=f"import sys\nprint({{'shared', *{[*LEFT_OUT]}}} & {{*sys.modules}})")
    async with running() as harness:
        harness.client.send(job.preload())
        assert await job.run(harness) == {0: 0}
        assert job.output().read_text() == "{'shared'}\n"
        text = await news(harness, TemplateNews.LEFT_OUT)
        missing = [reason for _, reason in LEFT_OUT.values() if not re.search(reason, text)]
        assert missing == [], text


UNFIT = {
    "import multiprocessing\nlock = multiprocessing.Lock()": (
        r"preloading left shared memory \(.*\), as a lock or value of multiprocessing has"
    ),
    "import os\nif os.environ['TEMPLATE'] == 'yes' and os.fork(): pass": (
        "importing cause started a process"  # one that goes on as if it were the template
    ),
    "import os\nif os.environ['TEMPLATE'] == 'yes': os.close(1)": "redirected descriptor 1",
    "import builtins, os\nif os.environ['TEMPLATE'] == 'yes': del builtins.open": (
        "preloading has broken Python: NameError"
    ),
    "import os\nif os.environ['TEMPLATE'] == 'yes': os._exit(5)": (
        "the process that preloads ended with exit code 5, 3 times"
    ),
    "import os\nif os.environ['TEMPLATE'] == 'yes': os.execvp('sleep', ['sleep', '1000'])": (
        "the process that preloads was ended by SIGKILL, 3 times"
    ),
}


@pytest.mark.parametrize("cause", UNFIT)
async def test_where_nothing_can_be_forked_workers_start_cold(job: Job, cause: str) -> None:
    job.env = {"TEMPLATE": "yes"}
    job.worker_env = {"TEMPLATE": "no"}
    job.write(shared="import cause", cause=cause)
    async with running() as harness:
        harness.client.send(job.preload())
        assert await job.run(harness) == {0: 0}
        assert job.output().read_text() == "False\n"
        assert re.search(UNFIT[cause], await news(harness, TemplateNews.COLD))
        assert await job.run(harness, round_id=1) == {0: 0}
        assert templates(harness) == []


async def test_what_python_imports_before_any_program_must_not_start_threads_either(
    job: Job,
) -> None:
    job.write({"sitecustomize": LEFT_OUT["starts_thread"][0]})
    job.env = {"PYTHONPATH": str(job.folder / "package")}
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        why = await news(harness, TemplateNews.COLD)
        assert "importing sitecustomize started a thread (Thread-1 (wait))" in why


LEFT = """
import gc, os, signal, threading
gc.disable()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
kept = open(__file__, "rb")
kept.readline()
"""
LEAVES = """
import gc, os, shared, signal, threading
print(shared.kept.read(10_000), gc.isenabled(), signal.getsignal(signal.SIGCHLD))
print(threading.main_thread().native_id == os.getpid(), sorted(os.listdir("/proc/self/fd")))
"""


async def test_each_worker_has_for_itself_what_imports_leave(job: Job) -> None:
    """A place in a file that is open, and what they have set."""
    job.write(shared=LEFT, work=LEAVES)
    assert await in_both_ways(job, count=2) == ({0: 0, 1: 0}, {0: 0, 1: 0})
    cold, *others = (job.output(r, kind).read_text() for kind in ("cold", "warm") for r in (0, 1))
    assert [cold] * 3 == others
    assert "import gc" in cold


NO_MEMORY = """
import errno, os
left = 3  # the fork that is tried, the one that forks all others, the first of them
def fork(fork=os.fork):
    global left
    left -= 1
    if left < 0 and "ROUND" not in os.environ:
        raise OSError(errno.ENOMEM, "no memory")
    return fork()
os.fork = fork
"""


async def test_if_not_all_can_be_forked_all_start_cold_and_none_twice(job: Job) -> None:
    log = job.folder / "log"
    job.write(shared=NO_MEMORY, work=f"open({str(log)!r}, 'a').write('x')\n{IS_WARM}")
    async with running() as harness:
        harness.client.send(job.preload())
        assert await job.run(harness, count=3) == {0: 0, 1: 0, 2: 0}
        assert (job.output().read_text(), log.read_text()) == ("False\n", "xxx")
        why = await news(harness, TemplateNews.ENDED)
        assert "could not fork workers: Cannot allocate memory" in why


async def test_a_variable_that_is_read_at_the_start_of_a_process_must_be_the_same(job: Job) -> None:
    job.worker_env = {"OMP_NUM_THREADS": "3"}
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        assert job.output().read_text() == "False\n"
        assert "OMP_NUM_THREADS differs" in await news(harness, TemplateNews.COLD)


async def test_a_script_preloads_too_and_what_imports_set_stays_set(job: Job) -> None:
    script = job.folder / "before.py"
    script.write_text("import os, sys, wave\nos.environ.setdefault('A', '1')\nsys.kept = 5\n")
    job.script, job.modules = str(script), ()
    job.write(work="import os, sys\nprint('wave' in sys.modules, sys.kept, os.environ['A'])")
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        assert job.output().read_text() == "True 5 1\n"


async def test_a_template_outlives_its_workers_and_is_replaced_when_it_dies(job: Job) -> None:
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        [first] = templates(harness)
        assert first.name() == "worker template"
        harness.client.send(job.start(round_id=1))
        await harness.until(lambda: len(harness.of(WorkersStarted)) == 2)
        harness.client.send(KillWorkers())
        await harness.until(lambda: harness.of(WorkersStopped)[-1].round_id == 1)
        assert templates(harness) == [first]
        first.kill()
        assert "was ended by SIGKILL" in await news(harness, TemplateNews.ENDED)
        await job.run(harness, round_id=2)
        assert job.output().read_text() == "True\n"
        assert templates(harness) != [first]


async def test_a_round_finds_what_has_changed_during_the_one_before(job: Job) -> None:
    job.write(shared="value = 1", work="import sys\nprint(sys.modules['shared'].value)")
    async with running() as harness:
        harness.client.send(job.preload())
        harness.client.send(job.start())
        await harness.expect(WorkerExited)
        job.write(shared="value = 1 + 1")
        await stop(harness, 0)
        text = await news(harness, TemplateNews.RENEWED)
        assert text == f"{job.folder / 'shared.py'} has changed: preloading again"
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "2\n"


async def test_what_changes_just_before_a_start_is_found_too(job: Job) -> None:
    async with running() as harness:
        harness.client.send(job.preload())
        await news(harness, TemplateNews.READY)
        job.write(shared="value = 1 + 1")
        await job.run(harness)
        assert job.output().read_text() == "False\n", "it was forked from what is out of date"
        await news(harness, TemplateNews.READY, 2)
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "True\n"


async def test_a_change_is_found_behind_the_same_time_and_while_modules_are_imported(
    job: Job,
) -> None:
    gate, path = job.folder / "gate", job.folder / "shared.py"
    os.mkfifo(gate)
    # Whether it is found before the start or at it: what counts is what the worker finds.
    job.write(shared=f"value = 1\nopen({str(gate)!r}).read()")
    job.write(work="import shared\nprint(shared.value)")
    job.env = {"PYTHONDONTWRITEBYTECODE": "1"}  # Python's own files would not tell the last change
    async with running() as harness:
        harness.client.send(job.preload())
        with gate.open("w"):  # it is open at the other end, so the module is being imported
            job.write(shared="value = 2")
        await news(harness, TemplateNews.READY)
        await job.run(harness)
        assert job.output().read_text() == "2\n"
        await news(harness, TemplateNews.READY, 2)
        before = path.stat()
        job.write(shared="value = 3")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "3\n"


async def test_a_template_may_be_asked_for_anew_after_each_round(job: Job) -> None:
    job.is_refreshed = True
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "True\n"
        await news(harness, TemplateNews.READY, 3)


async def test_starts_wait_for_the_template_and_are_forgotten_when_stopped(job: Job) -> None:
    gate = job.folder / "gate"
    os.mkfifo(gate)
    job.write(shared=f"open({str(gate)!r}).read()")
    async with running() as harness:
        harness.client.send(job.preload())
        harness.client.send(job.start())
        await stop(harness, 0)
        assert harness.of(WorkersStarted) == []
        harness.client.send(job.start(round_id=1))
        harness.client.send(KillWorkers())
        await harness.until(lambda: harness.of(WorkersStopped)[-1].round_id == 1)
        gate.write_text("open")
        await news(harness, TemplateNews.READY)
        await job.run(harness, round_id=2)
        assert [each.round_id for each in harness.of(WorkersStarted)] == [2]
        assert job.output().read_text() == "True\n"


async def test_preloading_that_takes_too_long_is_given_up(job: Job) -> None:
    job.timeout_s = 0.3
    job.write(shared="import time, os\nif 'ROUND' not in os.environ: time.sleep(1000)")
    async with running() as harness:
        harness.client.send(job.preload())
        assert await job.run(harness) == {0: 0}
        assert "--preload-timeout, 0.3 s" in await news(harness, TemplateNews.COLD)
        assert templates(harness) == []


async def test_what_workers_import_by_themselves_is_told_once(job: Job) -> None:
    slow = "import time\ntime.sleep(0.15)"
    job.write({"__init__": "", "inner": slow}, work="import late, package.inner", late=slow)
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        text = await news(harness, TemplateNews.LATE_IMPORTS)
        assert re.search(r"import (late|package.inner) \(0.\d+ s\), ", text)
        assert re.search("--preload shared,(late,package.inner|package.inner,late) to avoid", text)
        await job.run(harness, round_id=1)
        assert len([each for each in harness.of(TemplateReported) if "late" in each.text]) == 1


@pytest.mark.parametrize("victim", ["supervisor", "template"])
async def test_a_kill_leaves_nothing_behind(job: Job, victim: str) -> None:
    job.write(work="import time\ntime.sleep(1000)")
    async with running() as harness:
        harness.client.send(job.preload())
        harness.client.send(job.start(count=2))
        [started] = await harness.expect(WorkersStarted)
        [template] = templates(harness)
        fds = [os.pidfd_open(pid) for pid in (*started.pids.values(), template.pid)]
        if victim == "template":  # whose end is none of its workers' business
            template.kill()
            await news(harness, TemplateNews.ENDED)
            assert all(psutil.pid_exists(pid) for pid in started.pids.values())
            await news(harness, TemplateNews.READY, 2)
            await stop(harness, 0)
        else:
            os.kill(harness.pid, signal.SIGKILL)
            await harness.until(lambda: bool(harness.deaths))
        await_ended(fds)


@pytest.mark.slow
async def test_a_template_that_does_not_answer_is_replaced(job: Job) -> None:
    async with running() as harness:
        harness.client.send(job.preload())
        await news(harness, TemplateNews.READY)
        [template] = templates(harness)
        template.suspend()
        assert await job.run(harness, count=2) == {0: 0, 1: 0}
        assert job.output().read_text() == "False\n"
        assert "did not fork workers within" in await news(harness, TemplateNews.ENDED)
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "True\n"


@pytest.mark.parametrize("threads", ["", "1"])
async def test_workers_that_are_bound_must_say_how_many_threads_they_have(
    job: Job, threads: str
) -> None:
    """Method: the template loads the library that counts CPUs, and workers get one of them."""
    if (library := find_library("gomp")) is None or len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this host has no OpenMP of GNU, or a single CPU")
    job.write(shared=f"import ctypes\nctypes.CDLL({library!r})")
    job.env = {"OMP_NUM_THREADS": threads} if threads else {}
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        assert job.output().read_text() == f"{bool(threads)}\n"
        if not threads:
            assert "set OMP_NUM_THREADS" in await news(harness, TemplateNews.COLD)
