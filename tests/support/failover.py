"""Several coordinators on one etcd, the run that they decide on in turn, and what holds of it.

Each coordinator is reached by agents through a proxy, whose address it tells others, and reaches
etcd through proxies of its own: each link can be cut without another one noticing.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumbeat.access.problem import AccessProblem
from drumbeat.v1 import query_pb2, query_pb2_grpc
from tests.support.channels import channel_to
from tests.support.cluster import (
    DEADLINE_S,
    LOOPBACK,
    Agent,
    Cluster,
    Coordinator,
    Worker,
    exit_all,
)
from tests.support.etcd import EtcdCluster, Port, Route
from tests.support.proxy import Proxy
from tests.support.status import RunStatus, kind
from tests.support.waiting import MS, wait_until_sync

TTL_S = 2  # the least that etcd grants with its defaults
LOOK_S = 2000 * MS
PHASE_RUNNING = 2


class Head:
    """One of the coordinators, over any number of lives."""

    def __init__(self, cluster: Cluster, etcd: EtcdCluster, prefix: str) -> None:
        self._port = Port()
        self.link = Proxy(self._port.address)
        self.route = Route(etcd)
        access = [f"--journal={self.route.url(prefix)}"]
        if etcd.user:
            access.append(f"--journal-password-file={etcd.password_file}")
        if etcd.tls:
            access.append(f"--journal-ca={etcd.ca_file}")
        self._begin: Callable[[bool], Coordinator] = lambda is_awaited: cluster.own_coordinator(
            *access,
            *("--leader-ttl", f"{TTL_S}s", "--advertise", self.address),
            port=int(self._port.address.rpartition(":")[2]),
            is_awaited=is_awaited,
        )
        self.coordinator: Coordinator | None = None

    @property
    def address(self) -> str:
        """HOST:PORT that agents are given."""
        return self.link.address

    @property
    def running(self) -> Coordinator:
        """Its present life."""
        assert self.coordinator is not None, "it was never started"
        return self.coordinator

    @property
    def log(self) -> str:
        """What its present life has written."""
        return self.running.process.stderr

    def start(self, *, is_awaited: bool = True) -> None:
        """Begin its first life, or another one, which may not be able to reach etcd yet."""
        if self.coordinator is None:
            self.coordinator = self._begin(is_awaited)
        else:
            self.coordinator.restart(is_awaited=is_awaited)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.running.kill()

    def listed(self) -> query_pb2.ListCoordinatorsResponse:
        """Return what it knows of all. Raises ``grpc.RpcError``."""
        with channel_to(self.running.address) as channel:
            stub = query_pb2_grpc.QueryServiceStub(channel)
            return stub.ListCoordinators(query_pb2.ListCoordinatorsRequest(), timeout=LOOK_S)

    def leads(self) -> int:
        """Return the term in which it says that it leads; 0: it does not, or says nothing."""
        if self.coordinator is None or not self.coordinator.process.is_running:
            return 0
        try:
            told = self.listed()
        except (grpc.RpcError, AccessProblem):
            return 0
        return told.term if any(c.is_leader and c.is_this for c in told.coordinators) else 0

    def health(self, service: str = "") -> str:
        """Return e.g. ``NOT_SERVING``. Raises ``grpc.RpcError``."""
        with channel_to(self.running.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LOOK_S)
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def close(self) -> None:
        """Give up its port."""
        self._port.close()


class Heads:
    """All coordinators; a context manager, with one of them leading when it is entered."""

    def __init__(
        self, cluster: Cluster, etcd: EtcdCluster, count: int = 2, *, prefix: str = ""
    ) -> None:
        self.cluster = cluster
        self.etcd = etcd
        prefix = prefix or etcd.new_prefix()
        self.all = [Head(cluster, etcd, prefix) for _ in range(count)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for head in self.all:
            self._stack.callback(head.close)
            self._stack.enter_context(head.link)
            self._stack.enter_context(head.route)
        with ExitStack() as stack:
            stack.callback(self._stack.close)
            for head in self.all:
                head.start(is_awaited=False)
            for head in self.all:
                head.running.process.wait_for_line("coordinator ready")
            self.leader()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # Before the links: what is stopped reads nothing, and a proxy would wait for it.
        for head in self.all:
            if head.coordinator is not None:
                head.coordinator.process.close()
        self._stack.close()

    @property
    def addresses(self) -> str:
        """What ``--coordinator`` is given."""
        return ",".join(head.address for head in self.all)

    def leader(self, *, after: int = 0) -> Head:
        """Return the one that leads, in a term later than ``after``, once one does."""

        def look() -> Head | None:
            terms = {head.leads(): head for head in self.all}
            return terms[max(terms)] if max(terms) > after else None

        found = wait_until_sync(look, DEADLINE_S, describe=self.cluster.logs)
        assert found is not None, "waited for"
        return found

    def follower(self, leader: Head) -> Head:
        """Return the first of the others."""
        return next(head for head in self.all if head is not leader)

    def wait_for_run(self, predicate: Callable[[RunStatus], bool]) -> RunStatus:
        """Return the run once ``predicate`` holds of it, whoever leads by then."""
        seen = RunStatus()

        def look() -> bool:
            nonlocal seen
            for head in self.all:
                if head.leads():
                    with suppress(grpc.RpcError):
                        seen = head.running.run("run")
                        return predicate(seen)
            return False

        wait_until_sync(look, DEADLINE_S, describe=lambda: f"{seen}\n{self.cluster.logs()}")
        return seen


class Training:
    """A run with one worker on each host, so that each failure makes exactly one record."""

    def __init__(self, heads: Heads, agents: int = 2, *options: str) -> None:
        self.heads = heads
        self.server = heads.cluster.worker_server()
        self.options = ("--nnodes", str(agents), "--max-restarts", "50", *options)
        self._token = heads.leader().running.create_token().text()
        self.agents: list[Agent] = []
        self.workers: list[Worker] = []
        self.round_id = self.restarts = self.failures = 0
        self.size = agents

    def join(self) -> Agent:
        """Start one more agent, that is told of all coordinators."""
        agent = self.heads.cluster.agent(
            *("--coordinator", self.heads.addresses, "--run-id", "run", "--token", self._token),
            *("--local-addr", LOOPBACK, *self.options, *self.server.command),
        )
        self.agents.append(agent)
        return agent

    def begin(self) -> Self:
        """Start all agents; return when their workers have come."""
        while len(self.agents) < self.size:
            self.join()
        self.workers = self.server.wait_for(self.size)
        return self

    def wait_attached(self) -> RunStatus:
        """Return when the one that leads has sessions with all agents and all records of theirs."""
        return self.heads.wait_for_run(
            lambda run: (
                [agent.is_connected for agent in run.agents] == [True] * self.size
                and run.phase == PHASE_RUNNING
                and run.failures_count >= self.failures
            )
        )

    def expect_untouched(self) -> None:
        """Check that no worker has ended, nor a new one come."""
        assert [worker.is_gone for worker in self.workers] == [False] * self.size
        assert [worker.ask("say still here") for worker in self.workers] == [""] * self.size
        assert self.server.is_quiet(), "a worker was started anew"

    def fail(self) -> None:
        """Let one worker fail; what is decided of it is waited for by ``recover``."""
        self.failures += 1
        self.workers[self.failures % self.size].order("exit 7")

    def recover(self) -> None:
        """Return when all workers of the next round are there; the failure cost one restart."""
        self.round_id += 1
        self.restarts += 1
        self.workers = self.server.wait_for_round(self.round_id, self.size)
        assert {worker.restart_count for worker in self.workers} == {self.restarts}

    def fail_and_recover(self) -> None:
        """Let one worker fail; return when the run has decided and goes on."""
        self.fail()
        self.recover()

    def expect(self, run: RunStatus) -> None:
        """Check that what was decided was decided once, and that nothing was lost."""
        assert run.round_id == self.round_id
        assert (run.restart_count, run.failures_count) == (self.restarts, self.failures)
        assert run.restarts_used == self.restarts
        events = [(kind(event), event.round_id) for event in run.history]
        started = [round_id for what, round_id in events if what == "round started"]
        ended = [round_id for what, round_id in events if what == "round ended"]
        assert started == list(range(self.round_id + 1))
        assert ended == list(range(self.round_id))
        numbers = [event.sequence for event in run.history]
        assert numbers == sorted(set(numbers)), "an event twice"

    def finish(self) -> None:
        """Let all workers succeed; check the ends of the agents and the whole run."""
        exit_all(self.workers)
        assert [agent.wait() for agent in self.agents] == [0] * len(self.agents)
        run = self.heads.wait_for_run(lambda run: bool(run.verdict.is_success))
        self.expect(run)
        assert self.server.is_quiet(), "a worker was started anew"
        for agent in self.agents:
            assert "Traceback" not in agent.stderr, agent.log()
