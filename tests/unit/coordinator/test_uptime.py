"""When something happened, however late it is told."""

import pytest

from drumbeat.coordinator.core.membership.leases import WINDOW_S, Birth


def test_the_quickest_message_counts() -> None:
    birth = Birth()
    birth.instant(10.0, now=110.5)
    birth.instant(11.0, now=111.001)
    assert birth.instant(12.0, now=119.0) == pytest.approx(112.001)


def test_what_was_said_long_ago_is_forgotten() -> None:
    """Goal: clocks may drift. Method: an agent whose clock loses a second in each window."""
    birth = Birth()
    now, uptime = 0.0, 0.0
    for _ in range(5):
        birth.instant(uptime, now=now)
        now += WINDOW_S + 1
        uptime += WINDOW_S
    assert now - birth.instant(uptime, now=now) <= 1.0
