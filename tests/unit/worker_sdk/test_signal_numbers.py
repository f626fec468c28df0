"""One place says which numbers are signals."""

import signal
import subprocess
import sys

import pytest

from drumbeat.agent.model import messages
from tests.support.layering import ROOT
from worker_sdk.interpreter.signal_numbers import is_signal


def test_the_signals_are_those_of_the_system() -> None:
    valid = {int(number) for number in signal.valid_signals()}
    assert {number for number in range(-2, 200) if is_signal(number)} == valid


@pytest.mark.parametrize("number", [32, 33, 65, 0, -9])
def test_no_command_carries_another_number(number: int) -> None:
    with pytest.raises(ValueError, match=f"signum: {number} is not a signal of this system"):
        messages.SignalWorkers(round_id=0, local_rank=0, signum=number, is_for_group=False)


WITHOUT_LINUX = """
import enum, os, select, signal
members = {each.name: each.value for each in signal.Signals if not each.name.startswith("SIGRT")}
signal.Signals = enum.IntEnum("Signals", members)
for module, names in (
    (signal, ("SIGRTMIN", "SIGRTMAX")),
    (os, ("eventfd", "memfd_create", "pipe2")),
    (select, ("epoll",)),
):
    for name in names:
        delattr(module, name)

import worker_sdk, worker_sdk.inprocess

with worker_sdk.expires(after=60, signal=signal.SIGUSR1):
    worker_sdk.heartbeat()
try:
    worker_sdk.expires(after=60, signal=40)
except ValueError as error:
    assert "must be 1 to 31, or" in str(error), error
else:
    raise AssertionError
assert worker_sdk.inprocess.Wrapper()(lambda: 3)() == 3
"""


def test_training_code_runs_where_it_is_written() -> None:
    """On macOS there are no real-time signals, and none of the calls of Linux."""
    subprocess.run([sys.executable, "-c", WITHOUT_LINUX], cwd=ROOT, timeout=60, check=True)
