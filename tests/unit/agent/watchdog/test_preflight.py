"""Workers of the preflight are watched, but by none of the limits that are set for training."""

from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.core.watchdog.model import WatchdogPolicy, WorkerKey
from drumbeat.agent.core.watchdog.watchdog import WatchdogCore

POLICY = WatchdogPolicy(startup_timeout_s=5.0, progress_timeout_s=5.0, exit_timeout_s=5.0)


def reports(*, is_preflight: bool, heartbeat_at: float | None = None) -> list[msg.Effect]:
    """Let a worker live for a minute; return what is reported of it."""
    core, key, effects, now = WatchdogCore(POLICY), WorkerKey(0, 0), list[msg.Effect](), 100.0
    core.handle(msg.WorkerStarted(worker=key, is_preflight=is_preflight), now=now)
    while now < 160.0:
        due = core.next_deadline()
        assert due is not None
        now = due
        snapshot = msg.Snapshot()
        if heartbeat_at is not None and now > heartbeat_at:
            snapshot = msg.Snapshot(heartbeats=1, heartbeat_at=heartbeat_at, progress_since=now)
        effects += core.handle(msg.DeadlineReached(), now=now)
        effects += core.handle(msg.BoardRead(worker=key, snapshot=snapshot), now=now)
    return [e for e in effects if not isinstance(e, msg.AnnounceLook | msg.ReadBoard)]


def test_limits_are_those_of_training_alone() -> None:
    assert reports(is_preflight=False)
    assert not reports(is_preflight=True)


def test_how_long_it_takes_to_a_heartbeat_is_not_learned() -> None:
    for is_preflight, usual_s in ((False, 20.0), (True, None)):
        core, key = WatchdogCore(WatchdogPolicy()), WorkerKey(0, 0)
        core.handle(msg.WorkerStarted(worker=key, is_preflight=is_preflight), now=100.0)
        core.handle(msg.HeartbeatReceived(worker=key), now=120.0)
        core.handle(msg.WorkerGone(worker=key), now=121.0)
        later = WorkerKey(1, 0)
        core.handle(msg.WorkerStarted(worker=later), now=130.0)
        assert core.workers[later]._usual_start_s == usual_s
