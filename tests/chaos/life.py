"""The life of a round: a world, its faults, and what must hold of it."""

from __future__ import annotations

import math
import os
import re
import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from tests.chaos import programs, promises
from tests.chaos.clients import Clients
from tests.chaos.decisions import Began, ListModel, RunModel, TermModel, seat_problems
from tests.chaos.faults import Faults
from tests.chaos.history import Operation, SearchTooLong, contradiction
from tests.chaos.plan import Kind
from tests.chaos.world import World

if TYPE_CHECKING:
    from tests.chaos.network import Network
    from tests.chaos.plan import Plan
    from tests.chaos.programs import Program

BEGIN_S = CALM_S = 30.0
"""Until all runs train; only a failing round waits for it."""
TORCH_SLOWNESS = 3
"""To import it takes so long that all waits are this many times as long."""
END_S = 45.0
"""Until all agents have ended once workers may, and coordinators once they are told to. In-process
runs may have to wait for a lost host that a new coordinator gives 15 s to come back."""
GONE_S = 3.0
SETTLED_S = 10.0
FRESH_S = 0.5
"""A worker that wrote within this time lives."""
DESCRIPTORS_MORE_MAX, MEMORY_MORE_MAX = 24, 64 << 20
"""Of a coordinator, at the end of a round beside its beginning."""
_IN_AGENT = re.compile(r"""File \\?"[^"]*/drumbeat/""")
"""Of a traceback of an agent's own; those of workers, which it passes on, have none."""
_ANSWERED = '"event": "coordinator answered"'
_WORKER_FAILED = '"event": "worker failed"'


class Round:
    """One round, from its plan to its problems."""

    def __init__(self, plan: Plan, network: Network, directory: Path, how: dict[str, str]) -> None:
        self._log_file = (directory / "round.log").open("w", buffering=1)
        self.problems: list[str] = []
        self.world = World(plan, network, directory, how)
        self.faults = Faults(self.world, self._log)
        self._began: dict[str, tuple[int, int, int]] = {}
        self._log(f"seed {plan.seed}: {plan}")

    def _log(self, text: str) -> None:
        self._log_file.write(f"{time.monotonic():.3f} {text}\n")

    def run(self) -> None:
        """Live it; what does not hold is in ``problems``."""
        try:
            with self.world:
                self._live()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what failed
            self._log(traceback.format_exc())
            self.problems.append(f"{type(error).__name__}: {error}")

    def _live(self) -> None:
        world = self.world
        self._log("all programs are started")
        for name, coordinator in world.coordinators.items():
            self._began[name] = (coordinator.lives, *programs.resources(coordinator.pid))
        world.wait_for(lambda: all(map(self._has_begun, world.runs)), 2 * BEGIN_S, "all runs begin")
        self._log("all runs have begun")
        with Clients(world.channels, list(world.runs)) as clients:
            try:
                self._train()
            except AssertionError as error:
                self.problems.append(str(error))
                self._log_what_is_there()
            clients.stop()
            for channel in world.channels:
                channel.connect()  # it may have found nobody a moment ago
                clients.look(channel, with_lists=True)
        is_over = not self.problems
        self._check_workers()
        self._check_histories(clients)
        if is_over:
            self._check_ends(clients)
            self._check_leftovers()
            self._end_coordinators()

    def _train(self) -> None:
        """Let runs have their faults, then train, and end. Raises ``AssertionError``."""
        world = self.world
        self.faults.run()
        self._log("all faults are over")
        slowness = TORCH_SLOWNESS if any(r.kind is Kind.TORCH for r in world.plan.runs) else 1
        world.wait_for(
            lambda: all(self._is_calm(run_id) for run_id in world.runs),
            CALM_S * slowness,
            "all runs train",
        )
        self._log("all runs train")
        world.finish()
        world.wait_for(self._are_agents_over, END_S, "all agents end")
        self._log("all agents have ended")
        for coordinator in world.coordinators.values():  # perhaps while one was upgraded
            coordinator.wait_for_line("coordinator ready", END_S)

    def _log_what_is_there(self) -> None:
        """Log what the coordinators know of all runs, and which processes agents have."""
        for channel in self.world.channels:
            for run_id in self.world.runs:
                with suppress(grpc.RpcError):
                    self._log(f"{channel.address}: {channel.run(run_id)}{channel.agents(run_id)}")
        for name, agent in self.world.agents.items():
            for pid in programs.descendants(agent.pid) if agent.is_running else ():
                self._log(f"{name}: {pid} {programs.state(pid)} {programs.command_line(pid)}")

    # Waits.

    def _has_begun(self, run_id: str) -> bool:
        return bool(self.world.lives(run_id))

    def _is_calm(self, run_id: str) -> bool:
        """Whether a run has all its workers, or has ended as it may."""
        world, run = self.world, self.world.runs[run_id]
        agents = world.agents_of(run_id)
        if not all(agent.is_running for agent in agents):
            return run.is_doomed and not any(agent.is_running for agent in agents)
        now = time.monotonic()
        lived = [life for life in world.lives(run_id) if life.last_at > now - FRESH_S]
        # One that comes after the success of its run is refused, as it should be.
        if not all(_ANSWERED in agent.log for agent in agents):
            return False
        if len({life.generation for life in lived}) != 1:
            return False
        # In process it goes on without a rank that was lost.
        return run.kind is Kind.INPROCESS or len(lived) == len(agents) * run.workers

    def _are_agents_over(self) -> bool:
        return not any(agent.is_running for agent in self.world.agents.values())

    # What must hold.

    def _check_ends(self, clients: Clients) -> None:
        """All agents of a run end alike, and as the coordinator says that it ended."""
        for run_id, run in self.world.runs.items():
            agents = self.world.agents_of(run_id)
            codes = {agent.exit_code for agent in agents}
            allowed: list[set[int | None]] = [{0}, {1}] if run.is_doomed else [{0}]
            if codes not in allowed:
                ends = {agent.name: agent.exit_code for agent in agents}
                self.problems.append(f"{run_id}: agents ended with {ends}")
            reports = {_report(agent) for agent in agents}
            if len(reports) > 1:
                self.problems.append(f"{run_id}: reports differ: {sorted(reports)}")
            for agent in agents:
                if _IN_AGENT.search(agent.log):
                    self.problems.append(f"{agent.name} wrote a traceback")
            answers = [each.action for each in clients.progress[run_id]]
            if not answers or not answers[-1].verdict:
                self.problems.append(f"{run_id} has no verdict, and its agents ended: {codes}")
                continue
            # Agents that were killed may have taken their records with them.
            told = sum(agent.log.count(_WORKER_FAILED) for agent in agents)
            if answers[-1].failures < told:
                self.problems.append(
                    f"{run_id}: {answers[-1].failures} failures are kept of {told} that agents saw"
                )

    def _check_workers(self) -> None:
        """Each rank is given once and lives once, and nothing is charged but workers' faults."""
        for run_id in self.world.runs:
            lived = self.world.lives(run_id)
            self.problems += seat_problems(life.seat for life in lived if life.iteration == 0)
            self.problems += promises.overlaps(lived, self.faults.absences)
            restarts = max((life.seat.restarts for life in lived), default=0)
            if restarts > (allowed := self.faults.charges[run_id]):
                self.problems.append(f"{run_id}: {restarts} restarts charged for {allowed} faults")

    def _check_histories(self, clients: Clients) -> None:
        histories: list[tuple[str, Any, list[Any]]] = [("terms", TermModel(), clients.terms)]
        for run_id in self.world.runs:
            seen = [*clients.progress[run_id], *self._beginnings(run_id)]
            histories.append((run_id, RunModel(), seen))
            histories.append((f"notes of {run_id}", ListModel(), clients.notes[run_id]))
        for name, model, operations in histories:
            try:
                problem = contradiction(model, operations)
            except SearchTooLong as error:
                self._log(f"{name}: not decided: {error}")
                continue
            if problem is not None:
                self.problems.append(f"{name}: no order explains the answers: {problem}")
        self._log(f"histories: { {name: len(operations) for name, _, operations in histories} }")
        for channel in self.world.channels:
            with suppress(grpc.RpcError):
                if lost := set(clients.tokens) - channel.tokens():
                    self.problems.append(f"tokens that were answered are lost: {sorted(lost)}")
                break

    def _beginnings(self, run_id: str) -> list[Operation[Began]]:
        """Return each start of a worker: its round was decided on at some time before."""
        return [
            Operation(
                f"worker {life.seat.pid}",
                -math.inf,
                life.began_at,
                Began(life.seat.round_id, life.seat.restarts),
            )
            for life in self.world.lives(run_id)
            if life.iteration == 0
        ]

    def _expected(self) -> set[int]:
        """Return the processes that are to be there now: front ends only below a coordinator."""
        ours = {each.pid for each in self.world.all_programs() if each.is_running}
        heads = [each.pid for each in self.world.coordinators.values() if each.is_running]
        return ours.union(*map(programs.descendants, heads))

    def _check_leftovers(self) -> None:
        """Nothing of agents is left, and coordinators have grown little."""
        deadline = time.monotonic() + GONE_S
        while left := {
            pid: line
            for pid, line in programs.marked(self.world.mark).items()
            if pid not in self._expected() and pid != os.getpid()
        }:
            if time.monotonic() > deadline:
                self.problems.append(f"processes are left: {left}")
                break
            time.sleep(programs.LOOK_S)
        for name in self.world.plan.hosts:
            temporary = self.world.disk(name) / "tmp"
            files = sorted(str(each.relative_to(temporary)) for each in temporary.rglob("*"))
            if files:
                self.problems.append(f"files are left on {name}: {files}")
        names = (each.name for each in Path("/dev/shm").iterdir())
        if shared := sorted(name for name in names if "faketime" not in name):
            self.problems.append(f"shared memory is left: {shared}")
        for name, coordinator in self.world.coordinators.items():
            self._check_growth(name, coordinator)

    def _check_growth(self, name: str, coordinator: Program) -> None:
        """A coordinator has about as much as when the round began; what is closing has its time."""
        lives, descriptors, memory = self._began[name]
        if lives != coordinator.lives:
            return
        deadline = time.monotonic() + SETTLED_S
        while True:
            now = programs.resources(coordinator.pid)
            is_more = now[0] > descriptors + DESCRIPTORS_MORE_MAX
            if not is_more or time.monotonic() > deadline:
                break
            time.sleep(programs.LOOK_S)
        self._log(f"{name}: {descriptors} descriptors, {memory >> 20} MB; now {now}")
        if is_more or now[1] > memory + MEMORY_MORE_MAX:
            self._log("\n".join(programs.descriptors(coordinator.pid)))
            self._log(Path(f"/proc/{coordinator.pid}/net/tcp").read_text())
            self._log(Path(f"/proc/{coordinator.pid}/net/tcp6").read_text())
            self.problems.append(f"{name} has grown from {descriptors, memory} to {now}")

    def _end_coordinators(self) -> None:
        for coordinator in self.world.coordinators.values():
            coordinator.send(signal.SIGTERM)
        for name, coordinator in self.world.coordinators.items():
            if (code := coordinator.wait(END_S)) != 0:
                self.problems.append(f"{name} ended with {code} when it was told to end")
            if "Traceback" in coordinator.log:
                self.problems.append(f"{name} wrote a traceback")


def _report(agent: Program) -> str:
    """Return the failure report that an agent wrote, or how it says that the run ended."""
    log = agent.log
    first, last = log.find("====="), log.rfind("=====")
    return log[first:last] if 0 <= first < last else ""
