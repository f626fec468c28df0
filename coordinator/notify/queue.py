"""Pure. Which message an endpoint gets next and when: rate limit, summaries, retries, overflow."""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum

from msgspec.structs import replace

from drumbeat.coordinator.notify.facts import Level, Message
from drumbeat.text.format import count

WAITING_MAX = 500  # messages for one endpoint; the oldest of more are dropped
# So many attempts in so long; messages that have to wait for it become one summary.
RATE_MAX, RATE_S = 10, 60.0
# A message is given up after so many attempts, about six minutes.
ATTEMPTS_MAX = 12
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
TITLES_SHOWN_MAX = 20  # in a summary


class Delivery(StrEnum):
    """What became of a message. The values are those of the metric."""

    SENT = "sent"
    FAILED = "failed"  # given up
    DROPPED = "dropped"  # for lack of room


class MessageQueue:
    """The messages for one endpoint. ``now`` is in monotonic seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_hurried = False  # at the end of the process: no message waits for the rate limit
        self._waiting: deque[Message] = deque()
        self._sent_at: deque[float] = deque(maxlen=RATE_MAX)
        self._current: tuple[Message, int] | None = None  # and how many it stands for
        self._attempts, self._retry_at = 0, 0.0
        self._lost = self._lost_told = 0  # messages that did not arrive; of these told

    @property
    def size(self) -> int:
        """How many messages are still to be sent."""
        return len(self._waiting) + (0 if self._current is None else self._current[1])

    def put(self, message: Message) -> None:
        """Add a message; the oldest is dropped if there is no room."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.counts[Delivery.DROPPED] += 1
            self._lost += 1
        self._waiting.append(message)

    def due_at(self) -> float | None:
        """Return from when on ``take`` has a message; ``None``: there is none."""
        if self._current is not None:
            return self._retry_at
        if not self._waiting:
            return None
        is_limited = len(self._sent_at) == RATE_MAX and not self.is_hurried
        return self._sent_at[0] + RATE_S if is_limited else 0.0

    def take(self, *, now: float) -> Message:
        """Return the message to send now; say then what became of it with ``settle``."""
        if self._current is None:
            room = RATE_MAX - sum(now - at < RATE_S for at in self._sent_at)
            gathered = len(self._waiting) if len(self._waiting) > room else 1
            taken = [self._waiting.popleft() for _ in range(gathered)]
            self._current = (_summary(taken) if gathered > 1 else taken[0]), gathered
            self._attempts = 0
        self._sent_at.append(now)
        self._attempts += 1
        message, self._lost_told = self._current[0], self._lost
        if not self._lost:
            return message
        lost = f"{count(self._lost, 'earlier message')} did not arrive here"
        return replace(message, body=f"{message.body}\n{lost}")

    def settle(self, *, is_sent: bool, may_retry: bool = True, now: float) -> None:
        """Take in whether the message was sent. What may have arrived is not sent again."""
        assert self._current is not None, "it was taken"
        if not is_sent and may_retry and self._attempts < ATTEMPTS_MAX:
            self._retry_at = now + min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** (self._attempts - 1))
            return
        (_, gathered), self._current = self._current, None
        self.counts[Delivery.SENT if is_sent else Delivery.FAILED] += gathered
        self._lost += -self._lost_told if is_sent else gathered


def _summary(messages: list[Message]) -> Message:
    """Return one message for several."""
    facts = Counter(message.fact for message in messages)
    lines = [", ".join(f"{fact}: {number}" for fact, number in facts.most_common()), ""]
    lines += [message.title for message in messages[:TITLES_SHOWN_MAX]]
    if (more := len(messages) - TITLES_SHOWN_MAX) > 0:
        lines.append(f"and {more} more")
    levels = {message.level for message in messages}
    worst = next(level for level in reversed(Level) if level in levels)
    title = f"drumbeat: {count(len(messages), 'message')}"
    return Message(fact="summary", level=worst, title=title, body="\n".join(lines))
