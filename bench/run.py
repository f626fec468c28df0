"""Ask every question in turn: ``python -m bench.run [--only NAME] [--side SIDE] [--repeats N]``.

Results are figures of one machine at one time. They are printed, and kept with
the circumstances under ``bench/results``; no test depends on them.
"""

from __future__ import annotations

import sys

from bench import (
    bench_agent_loss,
    bench_beats,
    bench_coordinator_back,
    bench_core_cost,
    bench_inprocess,
    bench_iteration_core,
    bench_iteration_run,
    bench_mass_failure,
    bench_memory,
    bench_processes,
    bench_rendezvous,
    bench_restart,
    bench_silent_loss,
    bench_start_to_exit,
    bench_tee,
    bench_timers,
)
from bench.harness import main

QUESTIONS = (
    *bench_restart.QUESTIONS,
    *bench_agent_loss.QUESTIONS,
    *bench_start_to_exit.QUESTIONS,
    *bench_rendezvous.QUESTIONS,
    *bench_coordinator_back.QUESTIONS,
    *bench_memory.QUESTIONS,
    *bench_core_cost.QUESTIONS,
    *bench_beats.QUESTIONS,
    *bench_silent_loss.QUESTIONS,
    *bench_mass_failure.QUESTIONS,
    *bench_iteration_core.QUESTIONS,
    *bench_iteration_run.QUESTIONS,
    *bench_inprocess.QUESTIONS,
    *bench_processes.QUESTIONS,
    *bench_tee.QUESTIONS,
    *bench_timers.QUESTIONS,
)

if __name__ == "__main__":
    sys.exit(main(QUESTIONS))
