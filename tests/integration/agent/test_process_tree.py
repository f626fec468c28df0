"""This process, as the kernel knows it."""

import subprocess
import sys

AGE = "from drumbeat.agent.workers.supervisor.process_tree import age_s; print(age_s())"


def test_the_age_of_a_process_counts_from_its_start_and_not_from_the_call() -> None:
    """Two tenths of a second before the program begins are a part of it."""
    command = f"sleep 0.2; exec {sys.executable} -c '{AGE}'"
    done = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
    assert 0.2 <= float(done.stdout) < 60.0
