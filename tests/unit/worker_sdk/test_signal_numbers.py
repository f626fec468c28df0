"""One place says which numbers are signals."""

from __future__ import annotations

import signal

import pytest

from agent.workers.supervisor import messages
from worker_sdk.interpreter.signal_numbers import is_signal


def test_the_signals_are_those_of_the_system() -> None:
    valid = {int(number) for number in signal.valid_signals()}
    assert {number for number in range(-2, 200) if is_signal(number)} == valid


@pytest.mark.parametrize("number", [32, 33, 65, 0, -9])
def test_no_command_carries_another_number(number: int) -> None:
    with pytest.raises(ValueError, match=f"signum: {number} is not a signal of this system"):
        messages.SignalWorkers(round_id=0, local_rank=0, signum=number, is_for_group=False)
