"""Pure. The state of this host's worker group: which workers of which round are alive."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from agent.core.model import NO_ROUND, Assignment, GroupState

_TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.IDLE: frozenset({GroupState.STARTING}),
    GroupState.STARTING: frozenset({GroupState.RUNNING, GroupState.FAILED, GroupState.STOPPING}),
    GroupState.RUNNING: frozenset(
        # IDLE: it held only workers that were excused when their supervisor died.
        {GroupState.SUCCEEDED, GroupState.FAILED, GroupState.STOPPING, GroupState.IDLE}
    ),
    GroupState.SUCCEEDED: frozenset({GroupState.STOPPING, GroupState.IDLE}),
    GroupState.FAILED: frozenset({GroupState.STOPPING, GroupState.IDLE}),
    GroupState.STOPPING: frozenset({GroupState.IDLE}),
}


class Residue(StrEnum):
    """What may be left of a round's processes."""

    NONE = "NONE"
    """Nothing; a new round may start."""
    LIVE = "LIVE"
    """Workers, or what they left behind."""
    STOPPING = "STOPPING"
    """The same, and the supervisor was told to end it."""


class Group:
    """One worker group at a time. The round counts as ours until ``leave``.

    ``has_failed`` tells of the current round, also while it is being stopped, and
    ``workers_done`` how many of its workers ended well by themselves.

    Invariant: ``is_free`` only without an assignment and without processes.
    """

    def __init__(self) -> None:
        self.state = GroupState.IDLE
        self.assignment: Assignment | None = None
        self.latest_round_id = self.succeeded_round_id = NO_ROUND
        self.has_failed = False
        self.workers_done = 0
        self._alive: set[int] = set()
        self._residue = Residue.NONE
        self._has_good_end = self._has_left = False
        self._has_ever_run = self._is_start_impossible = False

    @property
    def is_free(self) -> bool:
        """Whether a new round may start."""
        return self.assignment is None

    @property
    def workers_alive(self) -> int:
        """Workers alive; at least 1 while processes are being ended."""
        return max(len(self._alive), int(self.is_stopping))

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor was told to end what is left."""
        return self._residue is Residue.STOPPING

    @property
    def round_to_signal(self) -> int | None:
        """The round whose workers can be signalled: alive, and not told to stop."""
        if self.assignment is None or not self._alive or self._residue is not Residue.LIVE:
            return None
        return self.assignment.round_id

    @property
    def is_start_impossible(self) -> bool:
        """Whether the group failed at its start, and no worker has ever run here."""
        return self._is_start_impossible and self.state is GroupState.FAILED

    def assign(self, assignment: Assignment, local_world_size: int) -> None:
        """Begin a round."""
        assert self.is_free, "a round starts while an older one is not over"
        self.assignment, self.latest_round_id = assignment, assignment.round_id
        self._has_left = self.has_failed = self._has_good_end = False
        self.workers_done = 0
        self._alive = set(range(local_world_size))
        self._residue = Residue.LIVE
        self._enter(GroupState.STARTING)

    def started(self, round_id: int) -> None:
        """Note that all workers run."""
        self._has_ever_run = True
        if self._is_current(round_id) and self.state is GroupState.STARTING:
            self._enter(GroupState.RUNNING)

    def exited(
        self, round_id: int, local_rank: int, *, is_good: bool, is_excused: bool = False
    ) -> bool:
        """Note a worker's end; ``False`` if it is not one of this round's or known already.

        The end of one that ``is_excused`` is neither good nor bad for the group.
        """
        if not self._is_current(round_id) or local_rank not in self._alive:
            return False
        self._has_ever_run = True
        self._alive.discard(local_rank)
        if self.state is GroupState.STARTING:
            self._enter(GroupState.RUNNING)
        if not is_excused:
            self._has_good_end = self._has_good_end or is_good
            if not is_good:
                self.give_up()
        return True

    def conclude(self) -> None:
        """Succeed if all workers have ended, and not all of them were excused."""
        is_over = self.state is GroupState.RUNNING and not self._alive
        if is_over and self._has_good_end and self.assignment is not None:
            self._enter(GroupState.SUCCEEDED)
            self.succeeded_round_id = self.assignment.round_id

    def give_up(self) -> None:
        """Fail, unless it has failed, succeeded or is stopping already."""
        if self.state is GroupState.RUNNING:
            self._enter(GroupState.FAILED)

    def fail(self, round_id: int, local_rank: int) -> bool:
        """Note that a worker, and those after it, could not be started."""
        if not self._is_current(round_id) or self.state is not GroupState.STARTING:
            return False
        self._alive = {rank for rank in self._alive if rank < local_rank}
        self._has_ever_run = self._has_ever_run or bool(self._alive)
        self._is_start_impossible = not self._has_ever_run
        self._enter(GroupState.FAILED)
        return True

    def lose_all(self, is_excused: Callable[[int], bool] = lambda _local_rank: False) -> list[int]:
        """Note that every process is gone at once; return the workers that were running.

        Those that are excused don't fail the group.
        """
        lost = sorted(self._alive) if self._residue is Residue.LIVE else []
        if not all(map(is_excused, lost)):
            self._enter(GroupState.FAILED)
        self._clear()
        return lost

    def request_stop(self) -> bool:
        """Note that what is left is to be ended; ``False`` if nothing is, or it was asked for."""
        if self._residue is not Residue.LIVE:
            return False
        self._residue = Residue.STOPPING
        return True

    def stopped(self, round_id: int) -> None:
        """Note that nothing of the round is alive."""
        if self._is_current(round_id):
            self._clear()

    def leave(self) -> None:
        """Give the round up: it is over as soon as nothing of it is alive."""
        if not self._has_left:
            self._has_left = True
            if self._residue is not Residue.NONE:
                self._enter(GroupState.STOPPING)
        self._release()

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        assert (self.assignment is None) == (self.state is GroupState.IDLE), self.state
        assert self.assignment is not None or not self._alive, "workers of no round"
        assert self._residue is not Residue.NONE or not self._alive, "live workers, no processes"

    def _clear(self) -> None:
        self._alive, self._residue = set(), Residue.NONE
        self._release()

    def _release(self) -> None:
        if self._has_left and self._residue is Residue.NONE and self.assignment is not None:
            self.assignment = None
            self._enter(GroupState.IDLE)

    def _is_current(self, round_id: int) -> bool:
        return self.assignment is not None and self.assignment.round_id == round_id

    def _enter(self, state: GroupState) -> None:
        assert state in _TRANSITIONS[self.state], f"{self.state} can't become {state}"
        self.state = state
        self.has_failed = self.has_failed or state is GroupState.FAILED
