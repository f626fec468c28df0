"""Programs of ranks that call collectives, with one mistake, played until nothing moves.

Each rank is a list of instructions. Times follow from the instructions alone: a call ends when all
ranks of its group have made the same one, so that ranks may be played in any order.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from drumbeat.coordinator.core.failures.collective_evidence import CALLS_MAX
from drumbeat.model import CollectiveCall, GroupCalls

MISTAKES = ("skip", "extra", "swap", "size", "op", "dead", "stuck", "slow", "network")
STILL_S = 10.0  # the least that a round has stood still when it is looked at
_LATENCY_S = 0.001
_COMPUTE_MAX_S = 0.3
_SIZES = ("float32 [5]", "float32 [7]", "bfloat16 [128, 64]")
_OPS = ("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Group(NamedTuple):
    """A process group."""

    name: str
    label: str
    members: tuple[int, ...]


class Call(NamedTuple):
    """An instruction: to make a call, and to wait for its end unless it is asynchronous."""

    group: Group
    op: str
    tensors: str
    peer: int | None = None
    is_async: bool = False


class Compute(NamedTuple):
    """An instruction: to compute for some time; without end, to be stuck."""

    time_s: float


class Finish(NamedTuple):
    """An instruction: to wait for the ends of all calls."""


Instruction = Call | Compute | Finish


@dataclass(slots=True)
class Made:
    """A call that a rank has made."""

    call: Call
    sequence: int
    made_s: float
    active_s: float | None = None  # when its device began with it
    done_s: float | None = None


@dataclass(slots=True)
class Rank:
    """What a rank does."""

    number: int
    program: list[Instruction]
    at: int = 0
    now_s: float = 0.0
    stopped_s: float | None = None  # when it began to compute without end
    calls: list[Made] = field(default_factory=list)
    awaits: list[Made] = field(default_factory=list)
    counts: dict[object, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self.program) and not self.awaits


class Schedule:
    """One program of all ranks, with one mistake, and what is seen of it at one moment."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.size = self.rng.choice((2, 3, 4, 4, 6, 8, 8, 9, 12, 16))
        self.is_device = self.rng.random() < 0.4  # calls run one after the other, behind the host
        self.is_recorded = self.is_device or self.rng.random() < 0.3  # point-to-point operations
        self.mistake = self.rng.choice(MISTAKES)
        self.culprit = self.rng.randrange(self.size)
        self.broken: tuple[object, int] | None = None  # the call that the network never ends
        self.groups = self._groups()
        self.ranks = [Rank(number, []) for number in range(self.size)]
        self._write_programs()
        self._make_mistake()
        self._made: dict[tuple[object, int], dict[int, Made]] = defaultdict(dict)
        self._steps = 0  # of all ranks and their devices
        self.play()
        self.silent = self._silent()
        self.look_s = self._look_s()

    # The program.

    def _groups(self) -> dict[str, list[Group]]:
        """Return the groups of each kind: all ranks, the rows and the columns of a mesh."""
        world = tuple(range(self.size))
        found = {"world": [Group("0", "default_pg", world)]}
        widths = [each for each in range(2, self.size) if self.size % each == 0]
        if widths and self.rng.random() < 0.8:
            width = self.rng.choice(widths)
            rows = [world[i : i + width] for i in range(0, self.size, width)]
            columns = [world[i::width] for i in range(width)]
            is_split = self.rng.random() < 0.5  # groups of a dimension have one name
            for label, number, parts in (("mesh_tp", 1, rows), ("mesh_dp", 50, columns)):
                found[label] = [
                    Group(str(number if is_split else number + i), label, part)
                    for i, part in enumerate(parts)
                ]
        return found

    def _write_programs(self) -> None:
        step = self._step()
        is_same = self.rng.random() < 0.6
        for _ in range(self.rng.randint(2, 5)):
            for kind, op, tensors, is_async in step:
                for rank in self.ranks:
                    rank.program.append(Compute(self.rng.uniform(0.01, _COMPUTE_MAX_S)))
                    rank.program += self._instructions(rank.number, kind, op, tensors, is_async)
            for rank in self.ranks:
                rank.program.append(Finish())
            step = step if is_same else self._step()

    def _step(self) -> list[tuple[str, str, str, bool]]:
        kinds = [*self.groups, *(["pipe"] if self.rng.random() < 0.5 else [])]
        return [
            (
                self.rng.choice(kinds),
                self.rng.choice(_OPS),
                self.rng.choice(_SIZES),
                self.rng.random() < 0.25,
            )
            for _ in range(self.rng.randint(1, 6))
        ]

    def _instructions(
        self, rank: int, kind: str, op: str, tensors: str, is_async: bool
    ) -> list[Instruction]:
        world = self.groups["world"][0]
        if kind != "pipe":
            group = next(each for each in self.groups[kind] if rank in each.members)
            return [Call(group, op, tensors, None, is_async)]
        found: list[Instruction] = []
        if rank > 0:
            found.append(Call(world, "recv", tensors, rank - 1))
        if rank + 1 < self.size:
            found.append(Call(world, "send", tensors, rank + 1))
        return found

    # The mistake.

    def _make_mistake(self) -> None:
        program = self.ranks[self.culprit].program
        calls = [i for i, each in enumerate(program) if isinstance(each, Call)]
        if not calls:
            self.mistake = "none"
            return
        at = self.rng.choice(calls)
        call = program[at]
        assert isinstance(call, Call)
        match self.mistake:
            case "skip":
                del program[at]
            case "extra":
                program.insert(at, call)
            case "swap":
                later = [i for i in calls if i > at]
                other = later[0] if later else at
                program[at], program[other] = program[other], call
            case "size":
                program[at] = call._replace(tensors="float32 [6]")
            case "op":
                op = "barrier" if call.peer is None else call.op
                program[at] = call._replace(op=op)
            case "dead" | "stuck":
                program.insert(at, Compute(float("inf")))
            case "slow":
                program.insert(at, Compute(self.rng.uniform(2.0, 8.0) * STILL_S))
            case "network":
                key = self._key(self.culprit, call)
                before = [each for each in program[: at + 1] if isinstance(each, Call)]
                self.broken = key, sum(self._key(self.culprit, each) == key for each in before)

    # Playing.

    def play(self) -> None:
        """Go on until no rank can."""
        before = -1
        while before != self._steps:
            before = self._steps
            for rank in self.ranks:
                self._play(rank)

    def _play(self, rank: Rank) -> None:
        while True:
            self._run_device(rank)
            if any(each.done_s is None for each in rank.awaits):
                return
            rank.now_s = max([rank.now_s, *(each.done_s or 0.0 for each in rank.awaits)])
            rank.awaits.clear()
            if rank.at == len(rank.program):
                return
            instruction = rank.program[rank.at]
            if isinstance(instruction, Compute):
                rank.stopped_s = rank.now_s if instruction.time_s > STILL_S else rank.stopped_s
                if instruction.time_s == float("inf"):
                    return
                rank.now_s += instruction.time_s
            elif isinstance(instruction, Finish):
                rank.awaits = list(rank.calls)
            else:
                self._make(rank, instruction)
            rank.at += 1
            self._steps += 1

    def _make(self, rank: Rank, call: Call) -> None:
        counter = call.group, call.peer is None
        rank.counts[counter] += 1
        made = Made(call, rank.counts[counter], rank.now_s)
        key = self._key(rank.number, call)
        rank.counts[key] += call.peer is not None
        number = made.sequence if call.peer is None else rank.counts[key]
        self._made[key, number][rank.number] = made
        rank.calls.append(made)
        rank.now_s += 1e-5
        if not call.is_async and not self.is_device:
            rank.awaits = [made]
        if call.peer is not None and not self.is_recorded:
            rank.counts[counter] -= 1

    def _key(self, rank: int, call: Call) -> object:
        if call.peer is None:
            return call.group
        pair = (rank, call.peer) if call.op == "send" else (call.peer, rank)
        return call.group, pair

    def _run_device(self, rank: Rank) -> None:
        """Begin with calls, and end those that all ranks have begun with."""
        before_s = 0.0
        for made in rank.calls:
            if made.active_s is None:
                made.active_s = max(made.made_s, before_s)
            if made.done_s is None:
                self._end(rank, made)
            if self.is_device:
                if made.done_s is None:
                    return
                before_s = made.done_s

    def _end(self, rank: Rank, made: Made) -> None:
        call = made.call
        key = self._key(rank.number, call)
        place, all_made = next(
            (place, each)
            for place, each in self._made.items()
            if place[0] == key and each.get(rank.number) is made
        )
        wanted = 2 if call.peer is not None else len(call.group.members)
        if place == self.broken or len(all_made) < wanted:
            return
        begun = [each.active_s for each in all_made.values()]
        is_same = len({each.call.tensors for each in all_made.values()}) == 1
        if call.peer is None:
            is_same &= len({each.call.op for each in all_made.values()}) == 1
        if is_same and None not in begun:
            done_s = max(each for each in begun if each is not None) + _LATENCY_S
            for each in all_made.values():
                each.done_s = done_s
                self._steps += 1

    # What is seen.

    def _silent(self) -> set[int]:
        # A rank without an answer looks like the cause if the network ends no call.
        if self.rng.random() < 0.6 or self.mistake == "network":
            return set()
        share = self.rng.choice((0.1, 0.3))
        return {rank for rank in range(self.size) if self.rng.random() < share}

    def _look_s(self) -> float:
        culprit = self.ranks[self.culprit]
        if self.mistake == "slow" and culprit.stopped_s is not None:
            times_s = [each.time_s for each in culprit.program if isinstance(each, Compute)]
            slow_s = max(times_s)
            return culprit.stopped_s + self.rng.uniform(STILL_S, slow_s)
        return max(each.now_s for each in self.ranks) + self.rng.uniform(1.0, 6.0) * STILL_S

    def is_hung(self) -> bool:
        """Return whether some rank does not go on when it is looked at."""
        return any(not rank.is_at_end or rank.now_s > self.look_s for rank in self.ranks)

    def gone(self) -> set[int]:
        """Return the ranks that have died."""
        return {self.culprit} if self.mistake == "dead" else set()

    def waiting(self) -> set[int]:
        """Return the ranks whose stacks show that they wait in what no recorder shows."""
        return {
            rank.number
            for rank in self.ranks
            for made in rank.calls
            if made.call.peer is not None
            and not self.is_recorded
            and made.made_s <= self.look_s
            and (made.done_s is None or made.done_s > self.look_s)
        } - self.silent

    def answers(self) -> dict[int, tuple[GroupCalls, ...]]:
        """Return what the flight recorders of the ranks show."""
        unheard = self.silent | self.gone()
        return {r.number: self._answer(r) for r in self.ranks if r.number not in unheard}

    def _answer(self, rank: Rank) -> tuple[GroupCalls, ...]:
        found: dict[Group, list[CollectiveCall]] = {}
        for made in rank.calls:
            call = made.call
            if made.made_s > self.look_s or (call.peer is not None and not self.is_recorded):
                continue
            shown = CollectiveCall(
                sequence=made.sequence,
                op=call.op,
                tensors="" if call.op == "barrier" else call.tensors,
                is_done=made.done_s is not None and made.done_s <= self.look_s,
                age_s=self.look_s - made.made_s,
                peer=call.peer,
            )
            found.setdefault(call.group, []).append(shown)
        return tuple(
            GroupCalls(
                name=group.name,
                ranks=",".join(map(str, group.members)),
                label=group.label,
                calls=tuple(calls[-CALLS_MAX:]),
            )
            for group, calls in found.items()
        )
