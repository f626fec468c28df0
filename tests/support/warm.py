"""Workers that are forked from a template, beside those that are started without one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from drumbeat.agent.model.messages import (
    Preload,
    StartWorkers,
    StopWorkers,
    TemplateNews,
    TemplateReported,
    WorkerExited,
    WorkersStopped,
    WorkerStart,
)
from tests.support.supervision import Harness


@dataclass(kw_only=True)
class Job:
    """A script or module in a folder, and how its workers are started."""

    folder: Path
    program: tuple[str, ...] = ("work.py",)
    modules: tuple[str, ...] = ("shared",)
    script: str = ""
    env: dict[str, str] = field(default_factory=dict)
    worker_env: dict[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ("RANK", "ROUND")
    is_refreshed: bool = False
    is_bound: bool = True  # each worker to one CPU
    timeout_s: float = 60.0

    def write(self, package: dict[str, str] | None = None, **texts: str) -> Job:
        """Put modules into the folder, by name, and into the folder ``package`` there."""
        inner = {f"package/{name}": text for name, text in (package or {}).items()}
        for name, text in (texts | inner).items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return self

    @property
    def argv(self) -> tuple[str, ...]:
        program = self.program
        if program[0] != "-m":
            program = (str(self.folder / program[0]), *program[1:])
        return (sys.executable, "-u", *program)

    @property
    def common(self) -> dict[str, str]:
        # A worker of `-m` finds the folder as one does that is started there.
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **self.env}

    def preload(self) -> Preload:
        return Preload(
            argv=self.argv,
            env=self.common,
            modules=self.modules,
            script=self.script,
            own=self.own,
            path=(str(self.folder),),
            is_refreshed=self.is_refreshed,
            timeout_s=self.timeout_s,
        )

    def start(self, *, round_id: int = 0, count: int = 1, kind: str = "out") -> StartWorkers:
        """What starts the workers, each with files of its own for what it writes."""
        workers = tuple(
            WorkerStart(
                local_rank=rank,
                env={"RANK": str(rank), "ROUND": str(round_id), **self.worker_env},
                stdout=str(self.output(rank, kind)),
                stderr=str(self.output(rank, kind, "err")),
                cpus=(min(os.sched_getaffinity(0)),) if self.is_bound else (),
            )
            for rank in range(count)
        )
        return StartWorkers(round_id=round_id, argv=self.argv, env=self.common, workers=workers)

    def output(self, rank: int = 0, kind: str = "out", stream: str = "out") -> Path:
        return self.folder / f"{kind}.{rank}.{stream}"

    async def run(self, harness: Harness, **how: object) -> dict[int, int]:
        """Run one round to the end of its workers, and of all they leave; return exit codes."""
        command = self.start(**how)  # type: ignore[arg-type]
        round_id = command.round_id
        harness.client.send(command)

        def exits() -> dict[int, int]:
            ended = [each for each in harness.of(WorkerExited) if each.round_id == round_id]
            return {each.local_rank: each.exit_code for each in ended}

        await harness.until(lambda: len(exits()) == len(command.workers))
        await stop(harness, round_id)
        return exits()


async def stop(harness: Harness, round_id: int) -> None:
    """End what is left of a round."""
    harness.client.send(StopWorkers(round_id=round_id, signum=15, timeout_s=60))
    await harness.until(
        lambda: any(each.round_id == round_id for each in harness.of(WorkersStopped))
    )


async def news(harness: Harness, kind: TemplateNews, count: int = 1) -> str:
    """Wait until that has been said of a template so often; return the last of them."""

    def texts() -> list[str]:
        return [each.text for each in harness.of(TemplateReported) if each.news is kind]

    await harness.until(lambda: len(texts()) >= count)
    return texts()[-1]
