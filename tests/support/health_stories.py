"""Stories of runs that are well, and of runs that are not, each in another way."""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import EvidenceTaken, StopAsked
from drumbeat.coordinator.core.failures.hang_evidence import SeenRanks
from tests.support.hangs import ALL_REDUCE, LOADER, a_limit, a_seat, seen
from tests.support.watched_runs import Observed
from tests.support.world import RUN, Story

TRACEBACK = 'File "/data/train.py", line 33, in step\n'
WAITING = "wait 2\njoin a\nadvance 60"
SLOW = "run 3 straggler_factor=1.5 straggler_steps=20\npace 40 c=0.25"


def played(text: str) -> Story:
    observed = Observed()
    observed.play(text)
    return observed.story


def fail(story: Story, name: str, message: str = "ValueError: batch 7 has no labels") -> None:
    """Let a worker fail, and the run go on or end."""
    story.record(name, message=message, traceback=TRACEBACK)
    story.fail(name)
    for _ in range(2):
        story.obey_all()


def crash_loop() -> Story:
    """Return a story in which rank 1 fails on a host that is lost, and then elsewhere."""
    story = played("run 2 restarts_max=20 restart_delay_max_s=0\njoin c\ntrain 0:5")
    for name in ("b", "b", "b", "b", "c", "c", "c"):
        if name == "c" and not story.agents["b"].is_silent:
            story.silence("b")
            story.advance(60.0)
            story.obey_all()
        fail(story, name)
        story.advance(5.0)
    return story


def hang() -> Story:
    """Return a story in which rank 0 exceeds a limit because rank 1 does something else."""
    story = played("run 2\ntrain 0:20")
    story.beat("a", more={"expired": (a_limit(is_held=False),)})
    (question,) = story.of(fx.TakeEvidence)
    places = {"a": (0, ALL_REDUCE), "b": (1, LOADER)}
    ranks = [
        replace(seen(rank, stack), seat=a_seat(name, rank))
        for name, (rank, stack) in places.items()
    ]
    about = {"run_id": RUN, "round_id": question.round_id, "question": question.question}
    story.handle(EvidenceTaken(**about, seen=SeenRanks.of(ranks)))
    return story


def failed() -> Story:
    """Return a story that ends with its first failure."""
    story = played("run 2\ntrain 0:5")
    fail(story, "b")
    story.advance(130.0)
    return story


def stopped() -> Story:
    """Return a story that an operator ends."""
    story = played("run 2\ntrain 0:5")
    story.handle(StopAsked(run_id=RUN, caller="ada", reason="wrong data"))
    story.obey_all()
    return story


STORIES: dict[str, Callable[[], Story]] = {
    "healthy": partial(played, "run 2\ntrain 0:60"),
    "crash-loop": crash_loop,
    "straggler": partial(played, SLOW),
    "hang": hang,
    "waiting": partial(played, WAITING),
    "failed": failed,
    "stopped": stopped,
}
