"""A coordinator in a process of its own, with a run that goes on, for others to trouble."""

import gc
import json
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil

from bench.strangers.attacks import Door
from bench.strangers.live_run import Witnessed
from tests.support.cluster import DEADLINE_S, Cluster
from tests.support.waiting import wait_until_sync

AGENTS = 4
INTERVAL_S, LEASE_S = 0.2, 5.0


@dataclass(frozen=True)
class Holdings:
    """What the coordinator has."""

    descriptors: int
    memory_mb: float


class Siege:
    """A context manager; the processes are gone when it is left."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._stack = ExitStack()
        self._asked = 0

    def __enter__(self) -> Self:
        cluster = self._stack.enter_context(Cluster())
        pace = ("--heartbeat-interval", str(INTERVAL_S), "--lease", str(LEASE_S))
        self.coordinator = cluster.coordinator(*pace, *self._options)
        self.door = Door(self.coordinator.port, is_tls=True)
        self.address = self.coordinator.address
        self._process = psutil.Process(self.coordinator.pid)
        run = (sys.executable, "-m", "bench.strangers.live_run")
        self.run = cluster.command("live run", *run, str(self.coordinator.port), str(AGENTS))
        self.run.wait_for_line("^running$")
        self.at_first = self.holdings()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def holdings(self) -> Holdings:
        """Return what the coordinator holds now."""
        return Holdings(self._process.num_fds(), self._process.memory_info().rss / 1e6)

    def witnessed(self) -> Witnessed:
        """Return what the run has gone through since this was last asked."""
        self._asked += 1
        self.run.send(signal.SIGUSR1)
        return Witnessed(**json.loads(self.run.wait_for_line(r"^\{.*\}$", count=self._asked)[0]))

    def wait_for_descriptors(self, most: int) -> None:
        """Return once the coordinator has no more than these."""
        # A call that this process gave up lies in a cycle with its coroutine: gRPC keeps its
        # connection, channel closed or not, until the cycle is found.
        gc.collect()
        wait_until_sync(
            lambda: self.holdings().descriptors <= most,
            DEADLINE_S,
            describe=lambda: (self.holdings(), self._process.net_connections()),
        )

    def check_run(self) -> None:
        """Assert that nothing happened to the run since it was last asked."""
        seen = self.witnessed()
        assert (seen.events, seen.failed, seen.agents) == (0, 0, AGENTS), seen
        assert seen.answers, seen
        # A beat is late by what is beyond its interval; at the lease an agent is given up.
        assert seen.silence_s < LEASE_S / 2, seen
        assert seen.answer_s < LEASE_S / 2, seen

    def check_log(self) -> None:
        """Assert that the coordinator met nothing that it did not expect."""
        assert self.coordinator.process.is_running, self.coordinator.process.log()
        assert "Traceback" not in self.coordinator.process.stderr, self.coordinator.process.stderr
