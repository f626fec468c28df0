"""What a program could notice of preloading: cold workers beside those of a template."""

import json
import os
from pathlib import Path

import pytest

from drumbeat.agent.model.messages import (
    TemplateNews,
    TemplateReported,
    WorkerExited,
)
from tests.support.supervision import Harness, running
from tests.support.warm import Job, news, stop


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(folder=tmp_path)


def said(harness: Harness, kind: TemplateNews) -> list[str]:
    return [each.text for each in harness.of(TemplateReported) if each.news is kind]


async def outputs(job: Job, *, rounds: int = 1, warm: bool = True) -> tuple[list[str], Harness]:
    """Run two workers for some rounds; return what each of them has printed."""
    found = []
    async with running() as harness:
        if warm:
            harness.client.send(job.preload())
        for round_id in range(rounds):
            assert await job.run(harness, round_id=round_id, count=2) == {0: 0, 1: 0}
            found += [job.output(rank).read_text() for rank in (0, 1)]
    return found, harness


DRAWS = "import random, numpy.random\nprint(random.random(), numpy.random.rand())\n"
SEEDS = "import random, numpy.random\nrandom.seed(7)\nnumpy.random.seed(7)\n"


@pytest.mark.slow
async def test_what_imports_draw_changes_nothing_but_what_they_seed_is_kept(job: Job) -> None:
    pytest.importorskip("numpy")
    job.write(shared=DRAWS, work=f"import shared\n{DRAWS}")
    numbers, harness = await outputs(job, rounds=2)
    drawn = [line for text in numbers for line in text.splitlines()]
    assert len(drawn) == len(set(drawn)) == 4
    job.write(shared=SEEDS, work=f"import shared\n{DRAWS}")
    [cold, *others], _ = await outputs(job, warm=False)
    assert others == [cold]
    warm, harness = await outputs(job, rounds=2)
    assert warm == [cold] * 4
    assert said(harness, TemplateNews.READY)


VALUES = """
import os, uuid
from uuid import uuid4
my_pid, run, text, code = os.getpid(), uuid4(), str(uuid.uuid4()), uuid.uuid1().hex
environment = os.environ.copy()
environment["MINE"] = "1"
others = dict(os.environ)
"""
SHOWS_VALUES = """
import json, os, shared, uuid
assert shared.uuid4 is uuid.uuid4
assert os.environ | {"MINE": "1"} == shared.environment
print(json.dumps([os.getpid() == shared.my_pid, shared.others == dict(os.environ),
                  str(shared.run), shared.text, shared.code]))
"""


async def test_each_worker_has_its_own_of_what_imports_compute(job: Job) -> None:
    job.write(shared=VALUES, work=SHOWS_VALUES)
    found, harness = await outputs(job, rounds=2)
    workers = [json.loads(text) for text in found]
    assert [each[:2] for each in workers] == [[True, True]] * 4
    drawn = [value for each in workers for value in each[2:]]
    assert len(drawn) == len(set(drawn)) == 12
    assert said(harness, TemplateNews.READY)
    assert not said(harness, TemplateNews.SHARED)


async def test_a_uuid_that_workers_share_is_told(job: Job) -> None:
    job.write(shared="import uuid\nname = f'run-{uuid.uuid4()}'", work="pass")
    async with running() as harness:
        harness.client.send(job.preload())
        text = await news(harness, TemplateNews.SHARED)
    assert text == "shared drew a UUID when it was imported: it is the same in all workers"


TEMPORARY = """
import tempfile
folder = tempfile.TemporaryDirectory(prefix="made-by-shared-")
"""
USES_TEMPORARY = """
import os, sys, time
is_warm = "plain" in sys.modules, "shared" in sys.modules
import shared
print(shared.folder.name, *is_warm, flush=True)
if os.environ["RANK"] == "1":
    open(os.environ["GATE"]).read()
assert os.path.isdir(shared.folder.name)
"""


async def test_no_worker_removes_the_temporary_directory_of_another(job: Job) -> None:
    """The first worker has ended, with its exit handlers, before the other one looks."""
    temporary = job.folder / "temporary"
    temporary.mkdir()
    gate = job.folder / "gate"
    os.mkfifo(gate)
    job.modules = ("plain", "shared")
    job.env = {"TMPDIR": str(temporary), "GATE": str(gate)}
    job.write(plain="import third", third="", shared=TEMPORARY, work=USES_TEMPORARY)
    async with running() as harness:
        harness.client.send(job.preload())
        harness.client.send(job.start(count=2))
        await harness.expect(WorkerExited)
        gate.write_text("")
        [_, last] = await harness.expect(WorkerExited, 2)
        assert (last.local_rank, last.exit_code) == (1, 0)
        why = await news(harness, TemplateNews.LEFT_OUT)
        assert "shared made a temporary file or directory" in why
        await stop(harness, 0)
    found = [job.output(rank).read_text().split() for rank in (0, 1)]
    assert found[0][0] != found[1][0]
    assert [each[1:] for each in found] == [["True", "False"]] * 2
    assert [*temporary.iterdir()] == [], "a process that was given up has left its own behind"


@pytest.mark.slow
async def test_a_data_file_that_an_import_reads_is_watched(job: Job) -> None:
    conf = job.folder / "conf.yaml"
    conf.write_text("1")
    local = job.folder / "conf.yaml.local"
    job.write(
        shared=f"value = open({str(conf)!r}).read()\n"
        f"try: more = open({str(local)!r}).read()\nexcept OSError: more = ''\n",
        work="import shared\nprint(shared.value, shared.more)",
    )
    # Whether a change is found after a round or at the start: what counts is what a worker finds.
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        assert job.output().read_text() == "1 \n"
        conf.write_text("2 is new")
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "2 is new \n"
        assert await news(harness, TemplateNews.RENEWED) == f"{conf} has changed: preloading again"
        await news(harness, TemplateNews.READY, 2)
        local.write_text("3")
        await job.run(harness, round_id=2)
        assert job.output().read_text() == "2 is new 3\n"
        await news(harness, TemplateNews.READY, 3)


async def test_a_file_that_an_import_writes_does_not_renew_the_template(job: Job) -> None:
    count = job.folder / "count"
    count.write_text("0")
    path = repr(str(count))
    job.write(
        shared=f"n = int(open({path}).read())\nopen({path}, 'w').write(str(n + 1))",
        work="import sys\nprint('shared' in sys.modules)",
    )
    found, harness = await outputs(job, rounds=3)
    assert found == ["True\n"] * 6
    assert not said(harness, TemplateNews.RENEWED)


READS = "import os\nhome = os.environ.get('MY_HOME')\nother = os.environ.get('OTHER')\n"
LATE = """
import os, sys
os.environ["OTHER"] = "given"  # as it was
os.environ["NEVER_READ"] = "1"
os.environ["MY_HOME"] = "late"
import shared
os.environ["OTHER"] = "after the import, as in any process"
print("shared" in sys.modules)
"""


async def test_a_variable_that_is_set_after_it_was_read_is_told_once(job: Job) -> None:
    job.env = {"OTHER": "given"}
    job.write(shared=READS, work=LATE)
    async with running() as harness:
        harness.client.send(job.preload())
        for round_id in range(2):
            await job.run(harness, round_id=round_id, count=2)
        text = await news(harness, TemplateNews.LATE_SETTINGS)
        assert "sets MY_HOME (read by shared) after" in text
        assert "OTHER" not in text
        assert "NEVER_READ" not in text
    assert len(said(harness, TemplateNews.LATE_SETTINGS)) == 1


LIGHTNING = {
    "__init__": "import heavy\nfrom package import strategies",
    "strategies": "from package.rank_zero import rank",
    "rank_zero": "import os\nrank = int(os.environ.get('RANK') or -1)",
}
USES_LIGHTNING = """
import sys
print(*(name in sys.modules for name in ("heavy", "other", "package", "needs", "user")))
import time
import package.strategies, user
print(package.strategies.rank, user.needs.package is package)
"""


async def test_a_module_that_reads_a_worker_s_own_variable_is_left_out_alone(job: Job) -> None:
    """As Lightning does. What needs it is left out, too, though it was imported later."""
    job.modules = ("other", "package", "user")
    job.write(
        LIGHTNING,
        heavy="",
        other="import heavy",
        needs="import package",
        user="import json\nimport needs",
        work=USES_LIGHTNING,
    )
    async with running() as harness:
        harness.client.send(job.preload())
        for round_id in range(2):
            await job.run(harness, round_id=round_id, count=2)
            for rank in (0, 1):
                warmth, ranks = job.output(rank).read_text().splitlines()
                assert warmth == "True True False False False"
                assert ranks == f"{rank} True"
    [text] = said(harness, TemplateNews.LEFT_OUT)
    assert text.startswith("package, user and 1 module beside not preloaded")
    assert "package.rank_zero read RANK when it was imported, and each worker has its own" in text
    assert not said(harness, TemplateNews.COLD)


async def test_an_unforeseen_variable_costs_one_cold_round(job: Job) -> None:
    job.modules = ("other", "shared")
    job.worker_env = {"SEAT": "window"}
    job.write(
        other="",
        shared="import os\nseat = os.environ.get('SEAT')",
        work="import sys\nis_warm = 'other' in sys.modules\nimport shared\n"
        "print(is_warm, shared.seat)",
    )
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness)
        assert job.output().read_text() == "False window\n"
        await news(harness, TemplateNews.READY, 2)
        await job.run(harness, round_id=1)
        assert job.output().read_text() == "True window\n"
        assert "shared read SEAT" in await news(harness, TemplateNews.LEFT_OUT)


async def test_a_bad_script_leaves_the_modules_preloaded(job: Job) -> None:
    script = job.folder / "before.py"
    script.write_text("import os\nrank = os.environ['RANK']\n")
    job.script = str(script)
    job.write(shared="", work="import sys\nprint('shared' in sys.modules)")
    found, harness = await outputs(job)
    assert found == ["True\n"] * 2
    assert f"{script} not preloaded" in said(harness, TemplateNews.LEFT_OUT)[0]


SLOW_FILES = """
import os, time
for number in range(800):
    try: open(f"/missing/{number}")
    except OSError: pass
def stat(*given, real=os.stat, **named):
    time.sleep(0.001)
    return real(*given, **named)
os.stat = stat
"""


async def test_it_is_told_once_that_not_all_files_are_looked_at_before_a_start(job: Job) -> None:
    job.write(shared=SLOW_FILES, work="pass")
    async with running() as harness:
        harness.client.send(job.preload())
        for round_id in range(2):
            await job.run(harness, round_id=round_id)
        text = await news(harness, TemplateNews.SHARED)
        assert text.endswith("may be noticed up to 20 starts late: use --preload-refresh")
    assert len(said(harness, TemplateNews.SHARED)) == 1


CALLBACK = "import atexit\natexit.register(print, {!r})\n"


async def test_exit_callbacks_are_those_of_a_new_process(job: Job, tmp_path: Path) -> None:
    """Those of modules run in workers; those of the script for preloading run nowhere."""
    script = tmp_path / "before.py"
    script.write_text(CALLBACK.format("of the script"))
    job.write(shared=CALLBACK.format("of the module"), work="import shared\n")
    cold, _ = await outputs(job, warm=False)
    assert cold == ["of the module\n"] * 2
    job.script = str(script)
    warm, harness = await outputs(job)
    assert warm == cold
    assert said(harness, TemplateNews.READY)
