"""Real torchruns with this backend, as hosts of one run, with steered workers."""

import sys
from collections.abc import Mapping

import psutil

from tests.support.cluster import Cluster, Coordinator, Process

# A start of torchrun imports torch, on a machine that is busy.
START_S = 90.0


class Torchruns:
    """Starts torchruns that meet at a coordinator; `server` is where their workers come to."""

    def __init__(self, cluster: Cluster, coordinator: Coordinator, nodes: str, *more: str) -> None:
        self.coordinator, self.server = coordinator, cluster.worker_server()
        self.run_id = cluster.run_id
        self._cluster = cluster
        self._options = ("--nnodes", nodes, *more)

    def start(self, *conf: str, env: Mapping[str, str] | None = None) -> Process:
        """Start one, with ``conf`` in its --rdzv-conf."""
        given = ",".join(("last_call_timeout=100", *conf))
        endpoint = ("--rdzv-endpoint", self.coordinator.address, "--rdzv-id", self.run_id)
        argv = ("--rdzv-backend", "drumbeat", *endpoint, "--rdzv-conf", given, *self._options)
        run = (sys.executable, "-m", "torch.distributed.run", *argv, *self.server.command)
        return self._cluster.command("torchrun", *run, env={"OMP_NUM_THREADS": "1", **(env or {})})


def kill_host(torchrun: Process) -> None:
    """End a torchrun and its workers with SIGKILL, as if their host were gone."""
    workers = psutil.Process(torchrun.pid).children(recursive=True)
    torchrun.kill()
    for worker in workers:
        worker.kill()
