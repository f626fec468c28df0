"""What repeats is told once in a while, with how often it was."""

from drumbeat.coordinator.core.registry.throttle import Throttle


def test_a_key_is_told_once_in_its_time_and_then_how_often_it_was() -> None:
    throttle = Throttle(10.0, keys_max=5)
    told = [throttle.take("a", now=now) for now in (0.0, 1.0, 9.9, 10.0, 11.0, 30.0)]
    assert told == [0, None, None, 2, None, 1]


def test_keys_do_not_disturb_each_other() -> None:
    throttle = Throttle(10.0, keys_max=5)
    assert [throttle.take(key, now=0.0) for key in "aba"] == [0, 0, None]


def test_more_keys_than_there_is_room_for_are_left_out_until_one_is_old() -> None:
    throttle = Throttle(10.0, keys_max=2)
    assert [throttle.take(key, now=at) for at, key in enumerate("abc")] == [0, 0, None]
    assert throttle.take("c", now=10.0) == 0
    assert throttle.take("d", now=10.5) is None
    assert len(throttle) == 2


def test_what_is_told_again_makes_room_for_no_other() -> None:
    throttle = Throttle(10.0, keys_max=2)
    throttle.take("a", now=0.0)
    throttle.take("b", now=5.0)
    assert throttle.take("a", now=10.0) == 0
    assert throttle.take("c", now=14.0) is None
    assert throttle.take("c", now=15.0) == 0
    assert throttle.take("a", now=15.5) is None
