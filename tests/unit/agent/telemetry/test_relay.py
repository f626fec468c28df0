"""A handler never harms the agent, whatever it does."""

import threading

from structlog.testing import capture_logs

from drumbeat.agent.telemetry import Event, EventHandler, EventSource, Metric
from drumbeat.agent.telemetry.handlers import DROPPED, Relay

EVENT = Event(name="e", source=EventSource.AGENT)
LONG_S = 20.0


def metric(value: int) -> Metric:
    return Metric(name="m", value=value)


class Kept:
    """Keeps what it gets; may be held up, and may fail."""

    def __init__(self, *, fails_on: tuple[float, ...] = ()) -> None:
        self.items: list[object] = []
        self.fails_on = fails_on
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_closed = False
        self.thread = ""

    def handle(self, event: Event) -> None:
        self.items.append(event.name)

    def put(self, metric: Metric) -> None:
        self.thread = threading.current_thread().name
        self.entered.set()
        self.may_go_on.wait(LONG_S)
        if metric.value in self.fails_on:
            raise ValueError(metric.value)
        self.items.append((metric.name, metric.value))

    def close(self) -> None:
        self.is_closed = True
        if "close" in self.items:
            raise OSError("gone")


def test_everything_arrives_in_order_and_then_the_end() -> None:
    handler = Kept()
    relay = Relay(lambda: handler)
    relay.send([metric(1), EVENT])
    relay.send([metric(2)])
    with capture_logs() as logs:
        relay.close()
    assert handler.items == [("m", 1), "e", ("m", 2)]
    assert handler.is_closed
    assert handler.thread == "telemetry"
    assert logs == []


def test_a_handler_that_raises_goes_on_with_the_next() -> None:
    handler = Kept(fails_on=(1, 3))
    with capture_logs() as logs:
        relay = Relay(lambda: handler)
        relay.send([metric(1), metric(2), metric(3)])
        relay.close()
    assert handler.items == [("m", 2)]
    assert (relay.failed, relay.dropped) == (2, 0)
    assert [line["event"] for line in logs] == ["event handler failed", "telemetry incomplete"]
    assert logs[0]["reason"] == "ValueError: 1"
    assert "2 refused" in logs[1]["reason"]


def test_a_handler_that_cannot_be_made_costs_only_telemetry() -> None:
    def make() -> EventHandler:
        raise ImportError("no such module")

    with capture_logs() as logs:
        relay = Relay(make)
        relay.send([EVENT])
        relay.close()
    assert relay.dropped == 1
    assert logs[0]["event"] == "event handler not available"
    assert logs[0]["reason"] == "ImportError: no such module"


def test_a_slow_handler_makes_a_full_queue_drop_and_count() -> None:
    handler = Kept()
    handler.may_go_on.clear()
    relay = Relay(lambda: handler, queue_max=2)
    relay.send([metric(0)])
    assert handler.entered.wait(LONG_S)
    relay.send([metric(number) for number in range(1, 6)])
    assert relay.dropped == 3
    handler.may_go_on.set()
    with capture_logs() as logs:
        relay.close()
    assert handler.items == [("m", 0), ("m", 1), ("m", 2), (DROPPED, 3)]
    assert [line["event"] for line in logs] == ["telemetry incomplete"]


def test_a_handler_that_blocks_is_left_behind() -> None:
    handler = Kept()
    handler.may_go_on.clear()
    relay = Relay(lambda: handler)
    relay.send([metric(0), metric(1)])
    assert handler.entered.wait(LONG_S)
    with capture_logs() as logs:
        relay.close(timeout_s=0.0)
    assert not handler.is_closed
    assert "2 not taken" in logs[0]["reason"]
    handler.may_go_on.set()
    relay.close()


def test_an_error_at_the_end_is_told() -> None:
    handler = Kept()
    handler.items.append("close")
    relay = Relay(lambda: handler)
    with capture_logs() as logs:
        relay.close()
    assert logs[0]["reason"] == "OSError: gone"
