"""Which message an endpoint gets when: a rate limit, summaries, retries and overflow."""

from drumbeat.coordinator.notify.facts import Level, Message
from drumbeat.coordinator.notify.queue import (
    ATTEMPTS_MAX,
    RATE_MAX,
    RATE_S,
    RETRY_MAX_S,
    TITLES_SHOWN_MAX,
    WAITING_MAX,
    MessageQueue,
)


def a_message(number: int = 0, *, level: Level = Level.FAILURE, fact: str = "failed") -> Message:
    return Message(fact=fact, level=level, title=f"run {number}: {fact}", body="why")


def sent_at(queue: MessageQueue, now: float) -> list[Message]:
    """Return what an endpoint that takes everything gets at an instant."""
    found = []
    while (due := queue.due_at()) is not None and due <= now:
        found.append(queue.take(now=now))
        queue.settle(is_sent=True, now=now)
    return found


def test_messages_come_one_by_one_in_order_up_to_the_rate_limit() -> None:
    queue = MessageQueue()
    for number in range(RATE_MAX):
        queue.put(a_message(number))
    titles = [each.title for each in sent_at(queue, 0.0)]
    assert titles == [f"run {number}: failed" for number in range(RATE_MAX)]
    assert (queue.due_at(), queue.counts) == (None, {"sent": RATE_MAX})


def test_what_is_beyond_the_rate_limit_is_one_summary() -> None:
    queue = MessageQueue()
    queue.put(a_message())
    (first,) = sent_at(queue, 0.0)
    for number in range(300):
        queue.put(a_message(number))
    queue.put(a_message(7, fact="succeeded", level=Level.SUCCESS))
    (summary,) = sent_at(queue, 1.0)
    assert (first.body, summary.title) == ("why", "drumbeat: 301 messages")
    assert summary.level is Level.FAILURE
    lines = summary.body.splitlines()
    assert lines[:3] == ["failed: 300, succeeded: 1", "", "run 0: failed"]
    assert lines[-1] == f"and {301 - TITLES_SHOWN_MAX} more"
    assert len(lines) == TITLES_SHOWN_MAX + 3
    assert queue.counts["sent"] == 302


def test_no_minute_has_more_messages_than_the_limit() -> None:
    queue, instants = MessageQueue(), list[int]()
    for now in range(5000):
        for _ in range(2):
            queue.put(a_message(now))
        instants += [now] * len(sent_at(queue, now))
    for first, last in zip(instants, instants[RATE_MAX:], strict=False):
        assert last - first >= RATE_S
    assert len(instants) > 80 * RATE_MAX
    assert queue.counts["sent"] + queue.size == 10_000
    assert not queue.counts["dropped"]


def test_a_message_that_is_refused_is_sent_again_ever_later_and_given_up() -> None:
    queue, now, waited = MessageQueue(), 0.0, []
    queue.put(a_message())
    for _ in range(ATTEMPTS_MAX):
        assert queue.take(now=now).title == "run 0: failed"
        queue.settle(is_sent=False, now=now)
        if (due := queue.due_at()) is not None:
            waited.append(due - now)
            now = due
    assert waited[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, RETRY_MAX_S]
    assert len(waited) == ATTEMPTS_MAX - 1
    assert set(waited[6:]) == {RETRY_MAX_S}
    assert (queue.size, queue.counts) == (0, {"failed": 1})
    now += RATE_S
    queue.put(a_message(1))
    (following,) = sent_at(queue, now)
    assert following.body == "why\n1 earlier message did not arrive here"
    queue.put(a_message(2))
    assert [each.body for each in sent_at(queue, now)] == ["why"], "it is said once"


def test_a_message_that_may_have_arrived_is_not_sent_again() -> None:
    queue = MessageQueue()
    queue.put(a_message())
    queue.take(now=0.0)
    queue.settle(is_sent=False, may_retry=False, now=60.0)
    assert (queue.due_at(), queue.counts) == (None, {"failed": 1})


def test_the_oldest_messages_are_dropped_where_there_is_no_room_and_that_is_said() -> None:
    queue = MessageQueue()
    queue.put(a_message())
    queue.take(now=0.0)  # and no answer comes
    for number in range(WAITING_MAX + 30):
        queue.put(a_message(number))
    assert queue.size == WAITING_MAX + 1
    assert queue.counts == {"dropped": 30}
    queue.settle(is_sent=True, now=1.0)
    (summary,) = sent_at(queue, 1.0)
    lines = summary.body.splitlines()
    assert lines[2] == "run 30: failed", "the oldest are gone"
    assert lines[-1] == "30 earlier messages did not arrive here"
    assert queue.counts == {"dropped": 30, "sent": WAITING_MAX + 1}


def test_at_the_end_no_message_waits_for_the_rate_limit() -> None:
    queue = MessageQueue()
    for number in range(RATE_MAX):
        queue.put(a_message(number))
    sent_at(queue, 0.0)
    queue.put(a_message(1))
    queue.put(a_message(2))
    assert queue.due_at() == RATE_S
    queue.is_hurried = True
    assert [each.title for each in sent_at(queue, 0.5)] == ["drumbeat: 2 messages"]


def test_attempts_count_against_the_rate_limit() -> None:
    queue, now = MessageQueue(), 0.0
    queue.put(a_message())
    for _ in range(6):
        queue.take(now=now)
        queue.settle(is_sent=False, now=now)
        now = queue.due_at() or now
    assert now == 63.0
    for number in range(RATE_MAX):
        queue.put(a_message(number))
    assert [each.title for each in sent_at(queue, now)] == [
        "run 0: failed",
        "drumbeat: 10 messages",
    ]
