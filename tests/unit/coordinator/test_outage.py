"""When a journal that fails is tried again, and when it is logged."""

from drumbeat.coordinator.journal.outage import REMIND_FIRST_S, RETRY_FIRST_S, RETRY_MAX_S, Outage


def test_retries_are_soon_at_first_and_never_far_apart() -> None:
    outage = Outage(now=0.0)
    delays = [outage.next_retry_s() for _ in range(12)]
    assert delays[:3] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert delays == sorted(delays)
    assert delays[-3:] == [RETRY_MAX_S] * 3


def test_each_reason_is_logged_once_and_then_ever_more_rarely() -> None:
    outage = Outage(now=100.0)
    heard = [now for now in range(100, 1100) if outage.failed("full", now=float(now))]
    assert heard == [100, *(100 + REMIND_FIRST_S * factor for factor in (1, 2, 4, 8, 16))][:6]
    assert outage.failed("read-only", now=1100.0)
    assert outage.reason == "read-only"
    assert outage.lasted_s(now=1100.0) == 1000.0
