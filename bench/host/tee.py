"""How fast do the lines of workers reach the console?"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.harness import STEP_S, BenchmarkError, Question
from bench.ways import ROOT

WORKERS = 4
LINES = 500_000
LAUNCHER = str(ROOT / "bench" / "programs" / "tee_launcher.py")
READ_BYTES = 1 << 20


def arrival(side: str) -> float:
    """Return the seconds from the first worker's beginning to the last line's arrival."""
    process = subprocess.Popen(
        [sys.executable, LAUNCHER, side, str(WORKERS), str(LINES)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    chunks: list[bytes] = []
    ended_at = 0.0
    with process:
        while chunk := process.stdout.read(READ_BYTES):
            chunks.append(chunk)
            ended_at = time.monotonic()
        code = process.wait(STEP_S)
    lines = b"".join(chunks).splitlines()
    begins = [float(line.split()[1]) for line in lines if b":began " in line]
    expected = WORKERS * (LINES + 1)
    if code != 0 or len(lines) != expected or len(begins) != WORKERS:
        raise BenchmarkError(f"exit code {code}, {len(lines)} of {expected} lines arrived")
    return ended_at - min(begins)


QUESTIONS = (
    Question(
        name="tee",
        text=f"{WORKERS} workers write {LINES:,} short lines each: begin to last one shown",
        unit="s",
        repeats=5,
        ours=lambda: arrival("ours"),
        torchrun=lambda: arrival("torchrun"),
    ),
)
