"""What the package takes and refuses, beside what torch's takes."""

from __future__ import annotations

import inspect
import operator
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.multiprocessing import DefaultLogsSpecs, RunProcsResult, start_processes
from tests.support import entrypoints
from tests.support.waiting import MS

DEADLINE_S = 30_000 * MS
"""Far longer than anything here takes."""


def test_incomplete_maps_and_odd_values_are_refused(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"args: local ranks are \[1\], must be \[0\]"):
        start_processes("w", "true", {1: ()}, {1: {}}, specs)
    with pytest.raises(RuntimeError, match=r"envs: local ranks are \[0\], must be \[0, 1\]"):
        start_processes("w", "true", {0: (), 1: ()}, {0: {}}, specs)
    with pytest.raises(TypeError, match=r"envs\[0\]\['A'\]: is 1, must be a string"):
        start_processes("w", "true", {0: ()}, {0: {"A": 1}}, specs)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        start_processes("w", print, {0: ()}, {0: {}}, specs, start_method="thread")
    with pytest.raises(ValueError, match="numa_options: 'node' is not supported"):
        start_processes("w", "true", {0: ()}, {0: {}}, specs, numa_options="node")  # type: ignore[arg-type]


def test_no_workers_are_done_at_once(tmp_path: Path) -> None:
    for entrypoint in ("true", entrypoints.nothing):
        context = start_processes("w", entrypoint, {}, {}, DefaultLogsSpecs(str(tmp_path)))
        assert context.wait(DEADLINE_S) == RunProcsResult()
        assert context.pids() == {}


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [
        "start_processes",
        "SubprocessContext",
        "MultiprocessContext",
        "RunProcsResult",
        "SignalException",
        "DefaultLogsSpecs",
        "LogsDest",
        "to_map",
        "PContext.wait",
        "PContext.close",
        "PContext.pids",
        "PContext.start",
        "Std.from_str",
        "LogsSpecs.reify",
    ],
)
def test_arguments_are_those_of_torch(name: str) -> None:
    """Names, order and defaults, so that only the import has to be changed."""
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    ours = sys.modules["agent.multiprocessing"]

    def arguments(package: Any) -> list[tuple[str, object]]:
        signature = inspect.signature(operator.attrgetter(name)(package))
        return [(each.name, each.default) for each in signature.parameters.values()]

    if name in ("LogsDest", "RunProcsResult"):
        assert [each for each, _ in arguments(ours)] == [each for each, _ in arguments(theirs)]
    else:
        assert str(arguments(ours)) == str(arguments(theirs))
