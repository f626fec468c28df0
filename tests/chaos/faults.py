"""Does the faults of a plan to a world, undoes them, and remembers what may be blamed on them."""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from drumbeat.v1 import control_pb2
from tests.chaos import programs
from tests.chaos.plan import Fault, FaultKind, Part
from tests.chaos.promises import Absence

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.programs import Program
    from tests.chaos.world import World

LOOK_S = 0.02
MEMORY = Path("/sys/fs/cgroup/memory")
WORKER_BYTES_MAX = 96 << 20
CALL_S = 1.0
FRONT_END = "drumbeat.coordinator.frontends"
SUPERVISOR = "drumbeat.agent.workers.supervisor"
TEMPLATE = "drumbeat.agent.workers.template"
DISK_FULL = "No space left on device"
SERVICE_S = 1.0
"""After which its service starts a coordinator again that found its disk full."""


class Faults:
    """All faults of one round."""

    def __init__(self, world: World, log: Callable[[str], None]) -> None:
        self._world, self._log = world, log
        self._undo: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._disks: set[str] = set()
        self.absences: list[Absence] = []
        self.charges: Counter[str] = Counter()
        """How many restarts of each run may be charged."""
        self.skipped: set[str] = set()

    def run(self) -> None:
        """Do all faults at their instants, and undo them; returns when all is well again."""
        began_at = time.monotonic()
        waiting = list(self._world.plan.faults)
        while waiting or self._undo or self._is_due():
            now = time.monotonic()
            while self._undo and self._undo[0][0] <= now:
                heapq.heappop(self._undo)[2]()
            while waiting and began_at + waiting[0].at_s <= now:
                self._do(waiting.pop(0))
            self._restart()
            time.sleep(LOOK_S)
        self._world.network.heal()

    def _is_due(self) -> bool:
        return any(each.due_at is not None for each in self._world.all_programs())

    def _restart(self) -> None:
        now, world = time.monotonic(), self._world
        for name, program in world.coordinators.items():
            if not program.is_running and program.due_at is None and DISK_FULL in program.log:
                program.due_at = now + SERVICE_S
            if program.due_at is not None and program.due_at <= now and not program.is_running:
                world.start_coordinator(name)
        for program in world.etcd.values():
            if program.due_at is not None and program.due_at <= now and not program.is_running:
                program.start()
        for name, program in world.agents.items():
            if program.due_at is not None and program.due_at <= now and not program.is_running:
                world.start_agent(name)

    def _do(self, fault: Fault) -> None:
        self._log(f"fault {fault}")
        actions: dict[FaultKind, Callable[[Fault], None]] = {
            FaultKind.CUT: self._cut,
            FaultKind.CUT_ONE_WAY: self._cut,
            FaultKind.LINK: self._cut,
            FaultKind.KILL: self._kill,
            FaultKind.STOP: self._stop,
            FaultKind.FAIL: self._fail,
            FaultKind.OOM: self._exhaust,
            FaultKind.DISK_FULL: self._fill,
            FaultKind.DISK_SLOW: self._freeze,
            FaultKind.CLOCK: self._step,
            FaultKind.ROTATE: self._rotate,
            FaultKind.UPGRADE: self._upgrade,
            FaultKind.STEP_DOWN: self._step_down,
            FaultKind.RESTART: self._restart_run,
            FaultKind.MAJORITY: self._kill_majority,
            FaultKind.LEAVE: self._leave,
        }
        actions[fault.kind](fault)

    def _later(self, fault: Fault, undo: Callable[[], None]) -> None:
        at = time.monotonic() + fault.length_s
        heapq.heappush(self._undo, (at, next(self._numbers), undo))

    def _absent(self, host: str, fault: Fault) -> None:
        """A host hears nothing, or does nothing, from now on until the fault is over."""
        now = time.monotonic()
        self._later(fault, lambda: self.absences.append(Absence(host, now, time.monotonic())))

    # The network.

    def _cut(self, fault: Fault) -> None:
        others = [name for name in self._world.network.hosts if name != fault.target]
        inwards = [(other, fault.target) for other in others]
        outwards = [(fault.target, other) for other in others]
        if fault.kind is FaultKind.CUT_ONE_WAY:
            links = inwards if fault.number % 2 else outwards
        else:
            links = inwards + outwards
        how = {"loss": 1.0}
        if fault.kind is FaultKind.LINK:
            how = {
                "loss": 0.2 * fault.amount if fault.number % 2 else 0.0,
                "delay_s": 0.05 * fault.amount,
                "jitter_s": 0.1 * fault.amount * (fault.number % 3),
                "repeat": 0.1 * (fault.number % 5 == 0),
            }
        self._world.network.impair(links, how)
        self._later(fault, lambda: self._world.network.impair(links, {}))
        self._absent(fault.target, fault)

    # Processes.

    def _kill(self, fault: Fault) -> None:
        match fault.part:
            case Part.COORDINATOR:
                self._kill_program(self._world.coordinators[fault.target], fault)
            case Part.ETCD:
                self._kill_program(self._world.etcd[fault.target], fault)
            case Part.AGENT:
                self._kill_program(self._world.agents[fault.target], fault)
            case Part.AGENT_AND_SUPERVISOR:
                programs.signal_all(self._pids(fault), signal.SIGKILL)
                self._kill_program(self._world.agents[fault.target], fault)
                self._absent(fault.target.partition("@")[2], fault)
            case Part.HOST:
                pids = programs.on_host(self._world.network.hosts[fault.target])
                agents = [a for a in self._world.agents.values() if a.host.name == fault.target]
                programs.signal_all(pids, signal.SIGKILL)
                for agent in agents:
                    self._kill_program(agent, fault)
            case Part.FRONT_END:  # started again by its coordinator
                programs.signal_all(self._pids(fault), signal.SIGKILL)
            case _:
                self._charge(fault)
                programs.signal_all(self._pids(fault), signal.SIGKILL)

    def _kill_program(self, program: Program, fault: Fault) -> None:
        if program.exit_code is not None and program.due_at is None and program.exit_code >= 0:
            return  # its run has ended
        program.send(signal.SIGKILL)
        program.wait(CALL_S)
        program.due_at = time.monotonic() + fault.length_s

    def _leave(self, fault: Fault) -> None:
        """Have an agent leave in order, and come again once it has ended."""
        agent = self._world.agents[fault.target]
        if agent.is_running:
            agent.send(signal.SIGTERM)
            agent.due_at = time.monotonic() + fault.length_s

    def _pids(self, fault: Fault) -> list[int]:
        """Return the processes that a fault is about; none, if there are none now."""
        world, target = self._world, fault.target
        match fault.part:
            case Part.COORDINATOR:
                pids = [world.coordinators[target].pid]
            case Part.FRONT_END:
                pids = self._below(world.coordinators[target].pid, FRONT_END)
            case Part.ETCD:
                pids = [world.etcd[target].pid]
            case Part.HOST:
                pids = programs.on_host(world.network.hosts[target])
            case Part.AGENT:
                pids = [world.agents[target].pid]
            case Part.AGENT_AND_SUPERVISOR:
                agent = world.agents[target].pid
                pids = [agent, *self._below(agent, SUPERVISOR)]
            case Part.SUPERVISOR | Part.TEMPLATE:
                word = SUPERVISOR if fault.part is Part.SUPERVISOR else TEMPLATE
                pids = self._below(world.agents[target].pid, word)
            case _:
                pids = [self._worker(fault)]
        return [pid for pid in pids if pid]

    @staticmethod
    def _below(pid: int, word: str) -> list[int]:
        """Return the first process below another with a word in its command line."""
        below = programs.descendants(pid)
        return [each for each in below if word in programs.command_line(each)][:1]

    def _worker(self, fault: Fault) -> int:
        """Return a worker of a run on a host that lives now; 0: there is none."""
        run_id, host = self._world.run_of[fault.target], fault.target.partition("@")[2]
        living = sorted(
            life.seat.pid
            for life in self._world.lives(run_id)
            if life.seat.host == host and programs.state(life.seat.pid)[0] not in ("", "Z")
        )
        return living[fault.number % len(living)] if living else 0

    def _charge(self, fault: Fault) -> None:
        self.charges[self._world.run_of[fault.target]] += 1

    def _stop(self, fault: Fault) -> None:
        pids = self._pids(fault)
        programs.freeze(pids)
        self._later(fault, lambda: programs.thaw(pids))
        if fault.part is Part.HOST:
            self._absent(fault.target, fault)
        elif fault.part in (Part.AGENT, Part.SUPERVISOR, Part.WORKER):
            self._absent(fault.target.partition("@")[2], fault)

    def _fail(self, fault: Fault) -> None:
        self._charge(fault)
        if worker := self._worker(fault):
            programs.signal_all([worker], signal.SIGUSR1)

    def _exhaust(self, fault: Fault) -> None:
        """Have a worker take more memory than its group may have."""
        worker = self._worker(fault)
        if not worker:
            return
        self._charge(fault)
        group = MEMORY / f"drumbeat-chaos-{self._world.mark}"
        try:
            group.mkdir(exist_ok=True)
            (group / "memory.limit_in_bytes").write_text(str(WORKER_BYTES_MAX))
            (group / "cgroup.procs").write_text(str(worker))
        except OSError as error:
            self.skipped.add(f"oom: no memory cgroup: {error}")
            return
        programs.signal_all([worker], signal.SIGUSR2)

    def _kill_majority(self, fault: Fault) -> None:
        names = random.Random(fault.number).sample(self._world.plan.members, k=2)
        for name in names:
            self._kill_program(self._world.etcd[name], fault)

    # Disks and clocks.

    def _fill(self, fault: Fault) -> None:
        if self._take_disk(fault):
            self._world.fill_disk(fault.target)
            self._later(fault, lambda: self._world.clear_disk(fault.target))

    def _freeze(self, fault: Fault) -> None:
        if self._take_disk(fault):
            self._world.freeze_disk(fault.target)
            self._later(fault, lambda: self._world.thaw_disk(fault.target))

    def _take_disk(self, fault: Fault) -> bool:
        """Whether a disk has no fault yet: this process would wait for one that stands still."""
        if fault.target in self._disks:
            self._log(f"left out, as the disk has a fault: {fault}")
            return False
        self._disks.add(fault.target)
        # Later than what undoes the fault.
        self._later(
            replace(fault, length_s=fault.length_s + LOOK_S),
            lambda: self._disks.discard(fault.target),
        )
        return True

    def _step(self, fault: Fault) -> None:
        by_s = (fault.amount - 0.5) * random.Random(fault.number).choice([2.0, 60.0, 4000.0])
        self._world.step_clock(fault.target, by_s)
        self._later(fault, partial(self._world.step_clock, fault.target, 0.0))

    # Operators.

    def _ask(self, method: str, request: object) -> None:
        """Ask coordinators one after another, until one does it."""
        for channel in self._world.channels:
            with suppress(grpc.RpcError):
                getattr(channel.control, method)(request, timeout=CALL_S)
                return

    def _rotate(self, _fault: Fault) -> None:
        self._ask("RotateAuthority", control_pb2.RotateAuthorityRequest())

    def _step_down(self, _fault: Fault) -> None:
        self._ask("StepDown", control_pb2.StepDownRequest())

    def _restart_run(self, fault: Fault) -> None:
        run_id = self._world.run_of[fault.target]
        request = control_pb2.RestartRunRequest(
            run_id=run_id, reason="chaos", request_id=f"restart {fault.at_s}"
        )
        self._ask("RestartRun", request)

    def _upgrade(self, fault: Fault) -> None:
        """End a coordinator in order, and start the present version in its place."""
        program = self._world.coordinators[fault.target]
        if program.is_running:
            program.send(signal.SIGTERM)
        program.due_at = time.monotonic()


def forget_group(mark: str) -> None:
    """Remove the memory group of a round, if it had one."""
    with suppress(OSError):
        (MEMORY / f"drumbeat-chaos-{mark}").rmdir()
