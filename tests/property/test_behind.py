"""Which rank is behind: never one of a healthy job, and soon the one that holds the others up."""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from drumbeat.coordinator.core.membership.leases import Birth, Presence
from drumbeat.coordinator.core.model import Round, Seat
from drumbeat.coordinator.observe.steps.behind import (
    LONGEST_STEPS,
    STAY_LEAST_S,
    USUAL_STEPS,
    laggards,
    peers_of,
)
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from tests.support.orders import at_most
from tests.support.world import an_agent

BEGAN = 1_000.0
STEPS_MAX = 8_000
LATE_S = 25.0  # so late words come now and then, stalls of agents among them


class Section(NamedTuple):
    """A time in which a rank is in a section, e.g. evaluates."""

    begin: float
    end: float


@dataclass
class Rank:
    """What one rank does: when it tells which step."""

    beats: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    is_mute: bool = False  # it uses the SDK, and tells no heartbeats

    def at(self, local_rank: int, now: float) -> WorkerProgress:
        """Return what its agent reads of it."""
        latest = bisect_right(self.beats, now) - 1
        if latest < 0 or self.is_mute:
            return WorkerProgress(local_rank=local_rank, runtime_age_s=0.1)
        begun = [each for each in self.sections if each.begin <= now]
        open_ = next((each for each in begun if now < each.end), None)
        since = max([self.beats[latest], *(each.end for each in begun)])
        took_s = None
        if latest:
            begin, end = self.beats[latest - 1 : latest + 1]
            took_s = end - begin - sum(each.end - each.begin for each in begun if each.end <= end)
        return WorkerProgress(
            local_rank=local_rank,
            step=self.steps[latest],
            step_time_s=None if took_s is None else max(took_s, 0.0),
            heartbeat_age_s=now - self.beats[latest],
            progress_age_s=None if open_ else now - since,
            scope="" if open_ is None else "eval",
            scope_age_s=None if open_ is None else now - open_.begin,
        )


@dataclass
class Job:
    """How a job trains. Works as training does: all wait for the slowest, unless it is not so."""

    random: Random
    ranks: int
    step_s: float
    until: float = 0.0
    is_synchronous: bool = True
    evaluates_each: int = 0  # steps, rank 0, in a section
    epoch: int = 0  # steps after which they count from 0
    mute: int = -1  # a rank without heartbeats
    told_at: float = 1.0  # how much of its work a rank has done when it tells the step
    hangs: tuple[int, int] | None = None  # a rank, and in which step

    def trained(self) -> list[Rank]:
        """Return what all ranks do."""
        random, found = self.random, [Rank(is_mute=i == self.mute) for i in range(self.ranks)]
        speed = [1.0 if self.is_synchronous else random.uniform(0.6, 1.0) for _ in found]
        how = random.choice(["even", "uniform", "logarithmic", "spikes"])
        now, hung = [BEGAN + random.random()] * self.ranks, False
        for number in range(STEPS_MAX):
            step = number % self.epoch if self.epoch else number
            for i, rank in enumerate(found):
                begin = now[i]
                if self.evaluates_each and i == 0 and number and not number % self.evaluates_each:
                    now[i] += 20 * self.step_s + random.uniform(5.0, 30.0)
                    rank.sections.append(Section(begin, now[i]))
                work_s = self._work_s(how) * speed[i]
                if self.hangs == (i, number):
                    now[i], hung = math.inf, True
                    continue
                rank.beats.append(now[i] + self.told_at * work_s)
                rank.steps.append(step)
                now[i] += work_s
            if self.is_synchronous:
                now = [max(now)] * self.ranks
            if (hung and self.is_synchronous) or min(now) > self.until:
                break
        return found

    def _work_s(self, how: str) -> float:
        """Return what a step takes: mostly the same, or up to ten times as long."""
        random, unit = self.random, self.step_s
        if how == "even":
            return unit * random.uniform(0.9, 1.1)
        if how == "uniform":
            return unit * random.uniform(0.2, 2.0)
        if how == "logarithmic":
            return unit * 10 ** random.uniform(-0.7, 0.3)
        return unit * (10.0 if random.random() < 0.1 else 1.0)


@dataclass
class Fleet:
    """Agents of a few hosts, their beats and who looks at what is known."""

    random: Random
    trained: list[Rank]
    until: float
    presences: dict[str, Presence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        left, seats = len(self.trained), dict[str, Seat]()
        while left:
            size, first = self.random.randint(1, min(left, 8)), len(self.trained) - left
            agent = an_agent(f"h{first}", local_world_size=size)
            seats[agent.incarnation] = Seat(
                agent=agent, group_rank=len(seats), rank_first=first,
                role_rank_first=first, role_world_size=len(self.trained),
            )  # fmt: skip
            left -= size
        self.round = Round(
            round_id=0, seats=seats, world_size=len(self.trained), restart_count=0,
            master_addr="h", master_port=1, reason="",
        )  # fmt: skip

    @property
    def look_s(self) -> float:
        """The longest time between two looks."""
        return (self.until - BEGAN) / 20

    def words(self) -> list[tuple[float, float, str]]:
        """Return when words of agents arrive and were sent. Some agents stall, some words are late.

        Each comes after the one before it, as on a connection.
        """
        random, found = self.random, list[tuple[float, float, str]]()
        for incarnation in self.round.seats:
            interval_s, arrives = random.choice([0.2, 1.0, 2.0]), 0.0
            at = BEGAN + random.random() * interval_s
            while at < self.until:
                late_s = random.uniform(0.5, 8.0) if random.random() < 0.02 else 0.0
                arrives = max(arrives, at + random.uniform(0.0, 0.02) + late_s)
                found.append((arrives, at, incarnation))
                at += interval_s + (random.uniform(1.0, 12.0) if random.random() < 0.02 else 0.0)
        return sorted(found)

    def behind(self) -> list[tuple[float, set[int]]]:
        """Look again and again; return who was behind, and when."""
        births = {each: Birth() for each in self.round.seats}
        self.presences = {each: Presence() for each in births}
        found, look_at = list[tuple[float, set[int]]](), BEGAN
        for arrives, sent, incarnation in self.words():
            while look_at < arrives:
                found.append((look_at, self._look()))
                look_at += self.random.uniform(0.1, self.look_s)
            seat = self.round.seats[incarnation]
            workers = [
                self.trained[seat.rank_first + i].at(i, sent)
                for i in range(seat.agent.local_world_size)
            ]
            told_at = births[incarnation].instant(sent, now=arrives)
            self.presences[incarnation].whereabouts.take(0, workers, now=told_at)
        return found

    def _look(self) -> set[int]:
        peers, found = peers_of(self.round, self.presences), set[int]()
        for incarnation, seat in self.round.seats.items():
            host = self.presences[incarnation].whereabouts
            behind = laggards(peers[seat.agent.role], host, 0, seat)
            found |= {each.standing.rank for each in behind.values()}
        return found


def a_job(seed: int, **fields: object) -> Job:
    random = Random(seed)
    step_s = 10 ** random.uniform(-3, 2)
    until = BEGAN + min(max(60.0, 60 * step_s), STEPS_MAX * step_s)
    ranks = random.choice([2, 2, 3, 4, 8, 24])
    told_at = random.choice([0.0, 0.5, 1.0])
    given = {"told_at": told_at, "until": until, **fields}
    return Job(random, ranks, step_s, **given)  # type: ignore[arg-type]


HEALTHY: dict[str, dict[str, object]] = {
    "synchronous": {},
    "asynchronous": {"is_synchronous": False},
    "evaluating": {"evaluates_each": 9},
    "in epochs": {"epoch": 7},
    "one without heartbeats": {"mute": 1},
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_no_rank_of_a_healthy_job_is_behind(kind: str) -> None:
    looks, seeds = 0, at_most(60)
    for seed in range(seeds):
        job = a_job(seed, **HEALTHY[kind])
        for at, found in Fleet(job.random, job.trained(), job.until).behind():
            looks += 1
            assert not found, f"seed {seed}, {at - BEGAN} s, steps of {job.step_s} s: {found}"
    assert looks > 17 * seeds


@pytest.mark.parametrize("epoch", [0, 12])
def test_the_rank_that_holds_the_others_up_is_named_within_several_steps(epoch: int) -> None:
    for seed in range(at_most(80)):
        job = a_job(seed, epoch=epoch, told_at=1.0, until=math.inf)
        rank, number = job.random.randrange(job.ranks), job.random.randint(10, 30)
        number += bool(epoch) and number % epoch == 0  # there it can't be told who is behind
        job.hangs = rank, number
        trained = job.trained()
        waits_from = max(each.beats[-1] for i, each in enumerate(trained) if i != rank)
        gaps = sorted(end - begin for each in trained for begin, end in pairwise(each.beats))
        # The usual step is an estimate.
        usual_s = gaps[int(0.9 * len(gaps))]
        stay_s = max(STAY_LEAST_S, USUAL_STEPS * usual_s, LONGEST_STEPS * gaps[-1])
        latest = waits_from + 1.2 * stay_s + LATE_S
        fleet = Fleet(job.random, trained, latest + stay_s)
        named = [(at, found) for at, found in fleet.behind() if found]
        assert all(found == {rank} for _, found in named), f"seed {seed}"
        assert named, f"seed {seed}: rank {rank} hangs in step {number}"
        first = named[0][0]
        assert waits_from + STAY_LEAST_S < first < latest + fleet.look_s, f"seed {seed}: {first}"
