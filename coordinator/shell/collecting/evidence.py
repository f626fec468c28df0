"""Shell. Takes evidence of a hang: asks all agents of a round what their workers do now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog
from msgspec.structs import asdict, replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.collecting.stack_gathering import AgentStacks
from drumbeat.coordinator.core.events import EvidenceTaken
from drumbeat.coordinator.core.failures.hang_evidence import RankEvidence, SeenRanks
from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.shell.collecting.stacks import StackQuestions, asked_of_round

log = structlog.get_logger()

# Different stacks that are kept of one hang; ranks with others count as silent. A round of
# any size has few, for its ranks run the same program.
STACKS_MAX = 1_000


class EvidenceTaker:
    """Answers what the cores ask for, each time with an event. Nothing of it is kept."""

    def __init__(
        self,
        stacks: StackQuestions,
        journal: Journal,
        submit: Callable[[EvidenceTaken], None],
    ) -> None:
        self._stacks, self._journal, self._submit = stacks, journal, submit
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, wanted: fx.TakeEvidence) -> None:
        """Begin to take evidence. ``EvidenceTaken`` follows in any case, in 5 seconds at most."""
        task = asyncio.get_running_loop().create_task(self._take(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Take no more."""
        for task in self._tasks:
            task.cancel()

    async def _take(self, wanted: fx.TakeEvidence) -> None:
        seen = SeenRanks()
        try:
            state = self._journal.runs.states.get(wanted.run_id)
            if state is not None and state.round and state.round.round_id == wanted.round_id:
                seen = SeenRanks(range(state.round.world_size))
                await gather_evidence(
                    self._stacks, state, state.round, seen, may_signal=wanted.may_signal
                )
        except CoordinatorError as error:
            log.warning("no evidence of a hang", reason=str(error), **{"run.id": wanted.run_id})
        except Exception:
            # In any case: agents hold workers until there is an answer.
            log.exception("evidence of a hang not taken", **{"run.id": wanted.run_id})
            seen = SeenRanks()  # a part of it would tell something else
        taken = EvidenceTaken(
            run_id=wanted.run_id,
            round_id=wanted.round_id,
            question=wanted.question,
            seen=seen,
        )
        try:
            self._submit(taken)
        except CoordinatorError as error:  # agents end their workers by themselves
            log.warning("a hang is not judged", reason=str(error), **{"run.id": wanted.run_id})


async def gather_evidence(
    stacks: StackQuestions,
    state: RunState,
    current: Round,
    seen: SeenRanks,
    *,
    may_signal: bool = False,
) -> None:
    """Ask what all workers of a round do, and add the answers. Raises ``LimitReached``."""
    asked = await asked_of_round(state, current, ())
    texts: dict[str, str] = {}
    asking = stacks.ask(
        state.run_id, current.round_id, asked, is_evidence=True, may_signal=may_signal
    )
    async with aclosing(asking) as answers:
        async for answer in answers:
            for rank in _evidence(answer, current, texts):
                seen.add(rank)


def _evidence(answer: AgentStacks, current: Round, texts: dict[str, str]) -> list[RankEvidence]:
    """Return what one agent said of its workers; equal stacks are one text."""
    seat, evidence = current.seats[answer.agent.incarnation], []
    for worker in answer.workers:
        stacks, problem = texts.get(worker.stacks, ""), worker.problem
        if worker.stacks and not stacks and len(texts) < STACKS_MAX:
            stacks = texts[worker.stacks] = worker.stacks
        if worker.stacks and not stacks:
            problem = f"other workers had {STACKS_MAX} different stacks"
        known = asdict(replace(worker, stacks=stacks, problem=problem))
        evidence.append(RankEvidence(seat=seat, is_reached=answer.is_reached, **known))
    return evidence
