"""Train four replica groups, kill a worker of one twice, and compare with whole restarts.

Both jobs train ``replica_groups.py`` on four agents of this machine. Prints the loss of both at the
same steps, and how much time the kills cost each. Exits with 0 if both came through.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from demo import DEADLINE_S, ROOT, STOP_S, DemoError, Stage, find_worker, start_coordinator

SCRIPT = ROOT / "examples" / "replica_groups.py"
PARTS, STEPS, KILL_AFTER = 4, 300, (100, 200)
VICTIM = f"agent {PARTS - 1}"
PRELOADED = "torch,torchft,sklearn.datasets"
ACCURACY_MIN = 0.9
SHOWN_STEPS = 25  # between two lines of the table
LATE = 5  # a step that takes so many times as long as usual

STEP = re.compile(r"step (\d+) part 0 loss ([\d.]+) at ([\d.]+)")
ACCURACY = re.compile(r"part 0: test accuracy ([\d.]+)")


@dataclass(slots=True)
class Curve:
    """What part 0 did; of a step that is made again the first time counts."""

    losses: dict[int, float] = field(default_factory=dict)
    instants: dict[int, float] = field(default_factory=dict)
    accuracy: float = 0.0
    exit_codes: list[int] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the training came through as it should."""
        return self.accuracy > ACCURACY_MIN and set(self.exit_codes) == {0}

    @property
    def lost_s(self) -> list[float]:
        """How much longer than usual each step took that was late."""
        gaps = [later - earlier for earlier, later in pairwise(self.instants.values())]
        usual_s = median(gaps)
        return [gap - usual_s for gap in gaps if gap > LATE * usual_s]


def train(directory: Path, *, in_groups: bool) -> Curve:
    """Train once, and kill a worker of the last agent after each of two steps."""
    stage, curve, kills = Stage(time.monotonic() + DEADLINE_S), Curve(), list(KILL_AFTER)
    try:
        address = start_coordinator(stage, directory / "state")
        for part in range(PARTS):
            group = ("--replica-group", f"{part}/{PARTS}")
            stage.start(
                f"agent {part}",
                *("agent", "join", "--coordinator", address, "--run-id", "demo"),
                *(group if in_groups else ("--nnodes", str(PARTS))),
                *("--nproc-per-node", "1", "--max-restarts", "3", "--preload", PRELOADED),
                *(str(SCRIPT), "--steps", str(STEPS), "--checkpoint", str(directory / "digits.pt")),
            )
        agents = {f"agent {part}" for part in range(PARTS)}
        while agents:
            line = stage.next_line()
            if line.text is None:
                agents.discard(line.source)
                curve.exit_codes.append(stage.processes[line.source].wait(STOP_S))
            elif found := ACCURACY.search(line.text):
                curve.accuracy = float(found[1])
            elif (found := STEP.search(line.text)) and int(found[1]) not in curve.losses:
                step = int(found[1])
                curve.losses[step], curve.instants[step] = float(found[2]), float(found[3])
                if kills and step >= kills[0]:
                    kills.pop(0)
                    find_worker([stage.processes[VICTIM]], -1, SCRIPT).kill()
                    print(f"[demo] killed the worker of {VICTIM}", flush=True)
    finally:
        stage.stop()
    return curve


def table(groups: Curve, whole: Curve) -> str:
    """Render both as text."""
    lines = ["step  loss in groups  loss with whole restarts"]
    for step in range(SHOWN_STEPS, STEPS + 1, SHOWN_STEPS):
        losses = (groups.losses.get(step, float("nan")), whole.losses.get(step, float("nan")))
        lines.append(f"{step:4}  {losses[0]:14.4f}  {losses[1]:24.4f}")
    for name, curve in {"groups": groups, "whole restarts": whole}.items():
        lost = ", ".join(f"{lost_s:.2f}" for lost_s in curve.lost_s) or "none"
        result = "good" if curve.is_good else f"NOT GOOD, exit codes {curve.exit_codes}"
        lines.append(f"{name}: time lost {sum(curve.lost_s):.2f} s ({lost}), {result}")
    return "\n".join(lines)


def main() -> int:
    curves = []
    for in_groups in (True, False):
        print(f"[demo] training {'in replica groups' if in_groups else 'as a whole'}", flush=True)
        with tempfile.TemporaryDirectory(prefix="drumbeat-demo-") as directory:
            try:
                curves.append(train(Path(directory), in_groups=in_groups))
            except DemoError as error:
                print(f"[demo] {error}", file=sys.stderr)
                return 1
    print(f"\n{table(*curves)}")
    return 0 if all(curve.is_good for curve in curves) else 1


if __name__ == "__main__":
    sys.exit(main())
