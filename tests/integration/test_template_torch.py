"""Programs that import torch, cold beside preloaded: what they can see of themselves."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drumbeat.agent.model.messages import TemplateNews, TemplateReported
from tests.support.supervision import running
from tests.support.warm import Job, news

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

OBSERVER = Path(__file__).parents[1] / "support" / "observer.py"
ROUNDS, RANKS = range(2), range(2)
# docs/warm.md names each of these.
SET_BY_IMPORTS = {"TORCHINDUCTOR_CACHE_DIR"}

HELPER = """
import atexit, logging, os, sys, uuid
atexit.register(lambda: print("the helper's callback, in this process:", pid == os.getpid()))
pid = os.getpid()
name = str(uuid.uuid4())
log = logging.getLogger("helper")
log.setLevel(logging.INFO)
environment = dict(os.environ)
"""
PROGRAM = """
import atexit, json, os, random, signal, sys
import numpy, torch, torch.nn.functional as F
import helper, observer
import logging, multiprocessing, pickle, threading

class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x

def child(point):
    return [point.x, __name__, os.getcwd(), sys.argv, os.environ["RANK"], torch.get_num_threads(),
            torch.initial_seed()]

def children():
    found, seeds = {}, []
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            *found[method], seed = pool.apply(child, (Point(3),))
            seeds.append(seed)
    return found, seeds

def levels():
    names = ["", *(name for name in logging.root.manager.loggerDict if "_dynamo" not in name)]
    return {name: [logging.getLogger(name).level, logging.getLogger(name).propagate,
                   [str(type(each)) for each in logging.getLogger(name).handlers]]
            for name in names}

def drawn(seeds):
    return [torch.initial_seed(), torch.rand(4).tolist(), torch.nn.Linear(2, 2).weight.tolist(),
            F.dropout(torch.ones(64)).tolist(), list(torch.utils.data.RandomSampler(range(64))),
            random.random(), numpy.random.rand(), helper.name, seeds]

def main():
    observed = {"process": observer.process(), "interpreter": observer.interpreter()}
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    signal.raise_signal(signal.SIGUSR1)
    atexit.register(print, "registered first")
    atexit.register(print, "registered last")
    is_first = os.environ["ROUND"] == os.environ["RANK"] == "0"
    in_children, seeds = children() if is_first else ({}, [os.getpid()])
    point = Point(2)
    print(json.dumps({
        "observed": observed,
        "signals heard": heard,
        "main": sorted(vars(sys.modules["__main__"])),
        "pickled": pickle.loads(pickle.dumps(point)) == point,
        "pickle": pickle.dumps(point).hex(),
        "children": in_children,
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(),
                    threading.active_count()],
        "levels": levels(),
        "torch": [str(torch.get_default_dtype()), torch.is_grad_enabled(),
                  torch.are_deterministic_algorithms_enabled(),
                  torch.get_float32_matmul_precision(), str(torch.get_default_device()),
                  torch.distributed.get_debug_level().name,
                  torch.cuda.is_initialized(), str(torch.default_generator.device)],
        "helper": [helper.pid == os.getpid(), helper.environment == dict(os.environ)
                   or sorted(dict(os.environ).keys() - helper.environment.keys())],
        "drawn": drawn(seeds),
    }))

if __name__ == "__main__":
    main()
"""


async def run(job: Job, kind: str, *, warm: bool) -> dict[tuple[int, int], list[str]]:
    """Return what each rank has printed in each round."""
    found = {}
    async with running() as harness:
        if warm:
            harness.client.send(job.preload())
        for round_id in ROUNDS:
            codes = await job.run(harness, round_id=round_id, count=len(RANKS), kind=kind)
            errors = [job.output(rank, kind, "err").read_text() for rank in RANKS]
            assert codes == dict.fromkeys(RANKS, 0), errors
            for rank in RANKS:
                found[round_id, rank] = job.output(rank, kind).read_text().splitlines()
        if warm:
            kinds = [each.news for each in harness.of(TemplateReported)]
            assert kinds[0] is TemplateNews.READY
            assert {*kinds} <= {TemplateNews.READY, TemplateNews.LATE_IMPORTS}
    return found


async def run_one_cold(job: Job) -> list[str]:
    """Return what a single worker without a template has printed."""
    async with running() as harness:
        assert await job.run(harness, kind="cold") == {0: 0}
    return job.output(kind="cold").read_text().splitlines()


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Return what is to be the same, without what the documentation says of preloading."""
    for name in SET_BY_IMPORTS:
        document["observed"]["process"]["environment"].pop(name, None)
    return document


@pytest.mark.slow
async def test_a_program_sees_no_difference_that_is_not_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over ranks and restarts; random numbers apart, all of which are to be different."""
    job = Job(folder=tmp_path, program=("work.py", "--epochs", "3"), modules=("torch", "helper"))
    job.env = {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    job.write(work=PROGRAM, helper=HELPER, observer=OBSERVER.read_text())
    monkeypatch.chdir(tmp_path)
    cold, warm = await run(job, "cold", warm=False), await run(job, "warm", warm=True)
    drawn: list[str] = []
    for key, (text, *rest) in cold.items():
        (text_warm, *rest_warm) = warm[key]
        assert (
            rest_warm
            == rest
            == [
                "registered last",
                "registered first",
                "the helper's callback, in this process: True",
            ]
        )
        documents = json.loads(text), json.loads(text_warm)
        for document in documents:
            drawn += [str(value) for value in document.pop("drawn")]
        [levels, levels_warm] = [document.pop("levels") for document in documents]
        assert {name: levels_warm[name] for name in levels} == levels
        [filters, filters_warm] = [
            document["observed"]["interpreter"].pop("warnings") for document in documents
        ]
        # Modules that this program does not import add theirs; docs/warm.md says so.
        assert [each for each in filters_warm if each in filters] == filters
        one, other = map(plain, documents)
        assert other == one
    # Nine of each of eight workers.
    assert len(drawn) == 9 * 8
    assert len(set(drawn)) == len(drawn), "two workers have drawn the same"


SEEDS = "import torch, random, numpy\ntorch.manual_seed(5)\nrandom.seed(5)\nnumpy.random.seed(5)\n"
SHOWS = """
import random, numpy, torch
print(torch.initial_seed(), torch.rand(2).tolist(), random.random(), numpy.random.rand())
"""


@pytest.mark.slow
async def test_a_preload_script_that_seeds_is_obeyed(tmp_path: Path) -> None:
    """By each rank in each round."""
    script = tmp_path / "before.py"
    script.write_text(SEEDS)
    job = Job(folder=tmp_path, modules=("torch",), script=str(script)).write(work=SHOWS)
    job.env = {"OMP_NUM_THREADS": "1"}
    warm = await run(job, "warm", warm=True)
    job.script = ""
    job.write(work=SEEDS + SHOWS)
    cold = await run_one_cold(job)
    assert warm == {(round_id, rank): cold for round_id in ROUNDS for rank in RANKS}


LATE = """
import os
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_LOGS"] = "+inductor"
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
import logging, torch, torch.distributed
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TORCHINDUCTOR_FREEZING"] = "1"
print(torch.get_num_threads(), logging.getLogger("torch._inductor").getEffectiveLevel(),
      torch.distributed.get_debug_level().name)
try:
    os.environ["A"] = 1
except TypeError as error:
    code = error.__traceback__.tb_next.tb_frame.f_code
    print(code.co_name, code.co_filename)
"""


@pytest.mark.slow
async def test_variables_of_torch_that_are_set_late_are_applied_or_told(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this host has a single CPU, so threads can't be set")
    job = Job(folder=tmp_path, modules=("torch",)).write(work=LATE)
    job.env = {"OMP_NUM_THREADS": "1"}
    job.is_bound = False
    cold = await run_one_cold(job)
    async with running() as harness:
        harness.client.send(job.preload())
        await job.run(harness, kind="warm")
        text = await news(harness, TemplateNews.LATE_SETTINGS)
    warm = job.output(kind="warm").read_text().splitlines()
    assert warm == cold
    assert warm[0].startswith("2 10 DETAIL")
    assert "sets TORCHINDUCTOR_MAX_AUTOTUNE (read by torch._inductor.config) after" in text
    for applied in ("OMP_NUM_THREADS", "MKL", "TORCH_LOGS", "DEBUG", "FREEZING"):
        assert applied not in text
