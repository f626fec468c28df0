"""Shell. torch's rendezvous handler, with a membership of a run in place of a shared store."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import structlog
import torch.distributed as dist
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig

from drumbeat import client as clients
from drumbeat.client import Assignment, Client, ClientError, WorkerFailure
from drumbeat.torchrun.config import client_settings

log = structlog.get_logger()

BACKEND, LAUNCHER = "drumbeat", "torchrun"
NO_ERROR_FILE = "<N/A>"  # of a worker that left none
# A call of torch's store hears neither signals nor the coordinator, so it lasts no longer; and for
# torch, once all hosts are there: its own default.
STORE_WAIT, STORE_TIMEOUT = timedelta(seconds=2), timedelta(minutes=5)
ADVICE = (
    "`agent join` in place of torchrun adds one restart budget for all hosts, stacks of hangs, the "
    "workers' output and restarts within the process: docs/torchrun.md"
)


class DrumbeatRendezvous(rendezvous.RendezvousHandler):  # type: ignore[misc]
    """One torchrun's place in a run. torch calls this from its main thread alone."""

    use_agent_store = True  # workers use the store that was handed out

    def __init__(self, parameters: RendezvousParameters) -> None:
        settings, self._close_timeout_s = client_settings(parameters.config)
        # torch tells a rendezvous nothing of the workers; `status` shows how many there are.
        if (launch := _of_a_caller(LaunchConfig)) is not None:
            settings |= {"nproc_per_node": launch.nproc_per_node, "role": launch.role}
        if parameters.local_addr:
            settings["local_addr"] = parameters.local_addr
        self._parameters, self._settings = parameters, settings
        self._client: Client | None = None
        self._is_closed = False
        self._handled = sys.exception()  # that a caller handles while it launches

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return str(self._parameters.run_id)

    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in the next round: wait until it is decided and all its hosts have come."""
        if self._is_closed:
            raise rendezvous.RendezvousClosedError("this rendezvous is closed")
        client = self._client = self._client or self._join()
        if not client.is_stop_wanted:  # torchrun wants a round, unless it is the first one
            result = _of_a_caller(RunResult)
            client.report_failed(_failure_of(result.failures if result is not None else {}))
        store = None
        try:
            while store is None:
                part = client.next_assignment()
                client.report_running()
                store = _meet(client, part)
        except ClientError as error:
            raise _torch_error(error) from error
        where = f"host {part.group_rank} of {part.group_world_size}"
        log.info("round", message=f"round {part.round_id}: {where}; {part.reason}")
        bootstrap = rendezvous.RendezvousStoreInfo(part.master_addr, part.master_port)
        return RendezvousInfo(store, part.group_rank, part.group_world_size, bootstrap)

    def num_nodes_waiting(self) -> int:
        """Return 1 if the workers are to be stopped, for another round or for ever, else 0."""
        return int(self._client is not None and self._client.is_stop_wanted)

    def is_closed(self) -> bool:
        """Return whether there will be no other round."""
        return self._is_closed or (self._client is not None and self._client.verdict is not None)

    def set_closed(self) -> None:
        """End the run for all hosts, if this one takes part in a round."""
        self._is_closed = True
        if self._client is not None:
            self._fail(self._client, WorkerFailure(message="torchrun closed the rendezvous"))

    def shutdown(self) -> bool:
        """Say how the workers ended, wait until all hosts have, and leave.

        torch says how only by the exception that ends torchrun, if one does.
        """
        client, error = self._client, sys.exception()
        self._is_closed = True
        if client is None:
            return True
        if error is None or error is self._handled:
            if client.is_stop_wanted:  # others go on, without this host
                client.close("torchrun ends, its workers succeeded")
            client.report_succeeded()
        elif isinstance(error, ChildFailedError):
            self._fail(client, _failure_of(error.failures))
        else:
            self._fail(client, WorkerFailure(message=f"{type(error).__name__}: {error}"))
        verdict = client.wait_for_end(self._close_timeout_s)
        client.close("torchrun ends")
        return verdict is not None

    def _join(self) -> Client:
        given = self._parameters
        nodes = given.min_nodes, given.max_nodes
        client = Client(given.endpoint, given.run_id, LAUNCHER, nodes, **self._settings)
        log.info(ADVICE)
        return client

    def _fail(self, client: Client, failure: WorkerFailure) -> None:
        """End the run for all hosts: the round, or the next one if this one is being stopped."""
        if client.is_stop_wanted:
            with suppress(ClientError, TimeoutError):
                client.next_assignment(self._close_timeout_s)
        client.report_failed(failure, is_final=True)


def _meet(client: Client, part: Assignment) -> dist.Store | None:
    """Return the store of a round once all its hosts have come there; None if it is over.

    The workers of some may take long to stop. torch would wait for them in one call.
    """
    if not part.has_store:
        raise rendezvous.RendezvousStateError(f"{part.master_addr} serves no store for this round")
    hosts = [f"host/{rank}" for rank in range(part.group_world_size)]
    address, port = part.master_addr, part.master_port
    store: dist.Store | None = None
    while not client.is_stop_wanted:
        try:
            if store is None:
                server = dist.TCPStore(address, port, timeout=STORE_WAIT, wait_for_workers=False)
                store = dist.PrefixStore(f"torch.rendezvous.{part.round_id}", server)
                store.set(hosts[part.group_rank], "")
            store.wait(hosts, STORE_WAIT)
        except dist.DistNetworkError:
            store = None
        except dist.DistError:
            pass  # not all hosts have come
        else:
            store.set_timeout(STORE_TIMEOUT)
            return store
    return None


def _torch_error(error: ClientError) -> rendezvous.RendezvousError:
    match error:
        case clients.RunOver() if error.verdict.cause == "AGENTS_MISSING":
            return rendezvous.RendezvousTimeoutError(str(error))
        case clients.RunOver():
            return rendezvous.RendezvousClosedError(str(error))
        case clients.Drained():
            return rendezvous.RendezvousGracefulExitError(str(error))
        case clients.Disconnected() | clients.Refused():
            return rendezvous.RendezvousConnectionError(str(error))
    return rendezvous.RendezvousStateError(str(error))


def _failure_of(failures: dict[int, Any]) -> WorkerFailure:
    """Return the first failure of torch's ``ProcessFailure`` by rank."""
    if not failures:
        return WorkerFailure(message="torchrun asked for a new round and did not say why")
    first = min(failures.values(), key=lambda failure: failure.timestamp)
    said = first.error_file_data["message"] if first.error_file != NO_ERROR_FILE else ""
    said = {"message": said} if isinstance(said, str) else said
    return WorkerFailure(
        local_rank=first.local_rank,
        exit_code=first.exitcode or 1,
        pid=first.pid,
        message=str(said.get("message", "")),
        traceback=str(said.get("extraInfo", {}).get("py_callstack", "")),
    )


def _of_a_caller(kind: type) -> Any:
    """Return the innermost local value of this type of the functions that are being called.

    torch hands a rendezvous neither its configuration nor what failed. Nothing is decided by it:
    without one `status` and reports say less.
    """
    frame = inspect.currentframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, kind):
                return value
        frame = frame.f_back
    return None
