"""A coordinator with a page, and runs on it that train, fail and have failed."""

from types import TracebackType
from typing import Self

from drumbeat.access.token import Role
from drumbeat.v1 import control_pb2, query_pb2, query_pb2_grpc
from tests.support.channels import channel_to
from tests.support.cluster import DEADLINE_S, ROOT, Agent, Cluster
from tests.support.etcd import Port

WORKER = str(ROOT / "tests" / "support" / "workers" / "shown.py")
LINK = "logs=https://logs.example/q?run={run_id}"
TRAINING = "mt5-large"
FAILED = "mt5-small"
HOSTILE = "hostile"
MARKUP = "<img/src=x/onerror=boom()><b>gpu3"
"""What the hostile run's agent is called, and more."""


class Stage:
    """All that the page is looked at with; a context manager, in which every run is there.

    ``mt5-large`` trains on two hosts with two ranks each, the last of them slow; ``mt5-small`` has
    failed; ``hostile`` is full of markup and escapes, and trains after a failure. Or, if it
    ``is_small``, there is the first run alone, on one host; if it ``is_pretty``, all hosts have
    eight ranks, and nothing is hostile.
    """

    def __init__(self, *, is_small: bool = False, is_pretty: bool = False) -> None:
        self.cluster = Cluster()
        self._is_pretty = is_pretty
        self._workers = 8 if is_pretty else 2
        self._is_small = is_small
        self.round_id = 0
        """Of the run that trains."""
        self._port = Port()

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        port = self._port.address.rpartition(":")[2]
        self.coordinator = self.cluster.coordinator("--http-port", port, "--link", LINK)
        self.agents: dict[str, Agent] = {}
        if self._is_small:
            self.agents["gpu0"] = self._join(TRAINING, "gpu0", "even")
            self.agents["gpu0"].wait_for_line("rank 1 trains at step")
            return self
        self.join("gpu0")
        if not self._is_pretty:
            self.agents["gpu3"] = self._join(HOSTILE, MARKUP, "hostile")
        failed = self._join(FAILED, "gpu2", "failing", "--max-restarts", "0")
        self.agents["gpu0"].wait_for_line("standing by")  # so that rank 0 is its
        self.join("gpu1")
        assert failed.wait() == 1
        if not self._is_pretty:
            self.agents["gpu3"].wait_for_line('"run.round": 1')
        self.agents["gpu1"].wait_for_line(f"rank {2 * self._workers - 1} trains at step 20")
        return self

    def join(self, name: str) -> Agent:
        """Start a host of the run that trains."""
        self.agents[name] = self._join(TRAINING, name, "steady", "--nnodes", "2")
        return self.agents[name]

    def _join(self, run_id: str, name: str, mode: str, *options: str) -> Agent:
        return self.cluster.agent(
            *(
                "--name",
                name,
                "--nproc-per-node",
                str(self._workers),
                "--max-restarts",
                "9",
                *options,
            ),
            *("--straggler-report", "1.5,5"),
            *(WORKER, str(self.cluster.directory), mode),
            coordinator=self.coordinator,
            run_id=run_id,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cluster.__exit__(kind, error, traceback)
        self._port.close()

    def link(self, run_id: str = "", role: Role = Role.ADMIN) -> str:
        """Return a new link to the page, or to one run in it."""
        asked = query_pb2.GetPageLinkRequest(
            run_id=run_id, role=control_pb2.Role.Value(f"ROLE_{role.upper()}")
        )
        with channel_to(self.coordinator.address) as channel:
            stub = query_pb2_grpc.QueryServiceStub(channel)
            return stub.GetPageLink(asked, timeout=DEADLINE_S, wait_for_ready=True).url

    def fail_a_worker(self) -> str:
        """Have rank 1 of the run that trains fail; return what it says of it."""
        round_id = self.round_id
        self.round_id += 1
        (self.cluster.directory / f"{TRAINING}-fails-{round_id}").touch()
        return f"loss is NaN in round {round_id}"
