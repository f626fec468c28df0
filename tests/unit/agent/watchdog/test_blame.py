"""Because of which hang a worker has ended."""

import pytest

from drumbeat.agent.core.watchdog.model import Report, Signal
from drumbeat.agent.model.hang import Hang, WorkerProgress
from drumbeat.agent.watchdog.blame import BLAMED_WITHIN_S, Blame
from drumbeat.model import HangKind
from tests.support.watch_script import NOW, WORKER

SIGUSR1, SIGUSR2, SIGTERM, SIGKILL = 10, 12, 15, 9
LATE = NOW + 100 * BLAMED_WITHIN_S


def hung(scope: str = "step") -> Hang:
    return Hang(
        kind=HangKind.TIMER,
        scope=scope,
        limit_s=1.0,
        elapsed_s=1.0,
        standing=WorkerProgress(local_rank=0),
        noticed_at=NOW,
    )


def blame_of(*sent: int, named: int | None = None, pid: int = 0) -> Blame:
    """Return what is known of a worker that hung and got these signals."""
    blame = Blame()
    blame.reported(Report(worker=WORKER, hang=hung(), is_ending=True, signal=named, pid=pid))
    for signum in sent:
        blame.sends(Signal(worker=WORKER, signum=signum, pid=pid), NOW)
    return blame


@pytest.mark.parametrize("exit_code", [-SIGTERM, -SIGKILL, 0, 1, 143])
def test_a_worker_that_is_to_be_killed_ends_because_of_it_however_late(exit_code: int) -> None:
    """One that was frozen got SIGKILL, too, and dies of SIGTERM once it runs again."""
    blame = blame_of(SIGTERM, SIGKILL)
    assert blame.hang_that_ended(exit_code, LATE) == hung()


def test_a_worker_that_ended_before_it_got_a_signal_has_hung_as_well() -> None:
    assert blame_of().hang_that_ended(0, NOW) == hung()


def test_a_worker_that_dies_late_of_the_signal_that_its_timer_names_has_hung() -> None:
    assert blame_of(SIGUSR1, named=SIGUSR1).hang_that_ended(-SIGUSR1, LATE) == hung()


def test_the_signal_that_ended_a_worker_tells_which_of_its_hangs_it_was() -> None:
    blame = blame_of(SIGUSR1, named=SIGUSR1)
    second = Report(worker=WORKER, hang=hung("save"), is_ending=True, signal=SIGUSR2)
    blame.reported(second)
    blame.sends(Signal(worker=WORKER, signum=SIGUSR2), NOW)
    assert blame.hang_that_ended(-SIGUSR1, LATE) == hung()
    assert blame.hang_that_ended(-SIGUSR2, LATE) == hung("save")


@pytest.mark.parametrize("exit_code", [0, 1, -SIGTERM, -SIGKILL])
def test_a_worker_that_handled_its_signal_and_went_on_is_not_blamed(exit_code: int) -> None:
    assert blame_of(SIGUSR1, named=SIGUSR1).hang_that_ended(exit_code, LATE) is None


@pytest.mark.parametrize(("exit_code", "is_blamed"), [(0, False), (1, True), (-SIGTERM, True)])
def test_soon_after_a_signal_of_its_own_a_bad_end_is_because_of_it(
    exit_code: int, *, is_blamed: bool
) -> None:
    found = blame_of(SIGUSR1, named=SIGUSR1).hang_that_ended(exit_code, NOW + 1)
    assert (found is not None) == is_blamed


def test_a_polite_end_soon_after_sigterm_that_a_timer_names_is_because_of_it() -> None:
    blame = blame_of(SIGTERM, named=SIGTERM)
    assert blame.hang_that_ended(0, NOW + 1) == hung()
    assert blame.hang_that_ended(0, LATE) is None


def test_a_signal_to_a_process_below_a_worker_is_not_what_ended_the_worker() -> None:
    blame = blame_of(SIGKILL, named=SIGKILL, pid=77)
    assert blame.hang_that_ended(-SIGKILL, LATE) is None
    assert blame.hang_that_ended(0, NOW + 1) is None
    assert blame.hang_that_ended(1, NOW + 1) == hung()


def test_a_worker_that_never_hung_is_not_blamed() -> None:
    assert Blame().hang_that_ended(-SIGTERM, NOW) is None
