"""How long does a quorum of replica groups take while none comes or goes, beside torchft's own?

Of each quorum it is the time from the last request to each answer. Ours goes through the lighthouse
of an agent for each group, all in one process, and a real coordinator. torchft's lighthouse is
asked directly. Replicas are the threads of one process, with torchft's client, on the same cores.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

from bench.figures import OneOfEach, one_of_each
from bench.harness import ENVIRONMENT, LOOPBACK, STEP_S, BenchmarkError, Question, Scene
from bench.ways import ROOT, Way

SIZES = (64, 256)
QUORUMS = 100


def figures(count: int, side: str) -> OneOfEach:
    return torchft(count) if side == "torchrun" else ours(count, side)


def ours(count: int, way: str) -> OneOfEach:
    with Scene(Way(way)) as scene:
        _, port = scene.start_coordinator()
        token = str(scene.directory / "token") if scene.way is Way.DEFAULT else ""
        program = (f"{LOOPBACK}:{port}", token, str(count), str(QUORUMS))
        return _measured(("-m", "bench.programs.quorum_agents", *program))


def torchft(count: int) -> OneOfEach:
    from torchft.coordination import LighthouseServer  # noqa: PLC0415 - only where it is there

    server = LighthouseServer(bind=f"{LOOPBACK}:0", min_replicas=count, join_timeout_ms=10_000)
    try:
        url = f"http://{LOOPBACK}:{server.address().rpartition(':')[2]}"
        urls = [url] * count
        return _measured(("-m", "bench.programs.quorum_clients", str(QUORUMS), *urls))
    finally:
        server.shutdown()


def _measured(arguments: tuple[str, ...]) -> OneOfEach:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, "TOKIO_WORKER_THREADS": "1", "RUST_LOG": "error"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=10 * STEP_S,
    )
    if done.returncode:
        raise BenchmarkError("the replicas did not get their quorums")
    cuts = statistics.quantiles(json.loads(done.stdout), n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def questions(count: int) -> list[Question]:
    """Return what is asked of so many groups."""
    of = f"quorum of {count} groups, none comes or goes"
    rows = (("p50", "ms", f"{of}, p50"), ("p99", "ms", f"{of}, p99"))
    others = ["torchrun"] if find_spec("torchft") is not None else []
    sides = (Way.DEFAULT, Way.INSECURE, *others)
    runs = one_of_each(partial(figures, count))
    return runs.questions(f"quorum_{count}", rows, sides, repeats=3, rival="torchft")


QUESTIONS = [question for count in SIZES for question in questions(count)]
