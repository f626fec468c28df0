"""Synchronous training on two hosts: no rank is behind, until a rank holds the others up."""

import json
import os
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

from drumbeat.access.token import Role
from tests.support.cluster import Cluster, Coordinator
from tests.support.etcd import Port
from tests.support.waiting import MS, wait_until_sync

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

# How often one looks at the healthy job, by each way.
LOOKS = int(os.environ.get("DRUMBEAT_TEST_LOOKS", "1"))
TRAIN = """
import os, pathlib, random, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
import worker_sdk

at = pathlib.Path(__file__).parent
dist.init_process_group("gloo")
rank = dist.get_rank()

class Data(Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        while rank == 2 and (at / "asleep").exists():
            time.sleep(0.05)
        time.sleep(random.uniform(0.02, 0.11))
        return torch.ones(8)

model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step, batch in enumerate(DataLoader(Data())):
    worker_sdk.heartbeat(step=step)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


class Look(NamedTuple):
    """Return which ranks are behind, by each way to look; empty if none is."""

    status: str
    why: str
    page: list[list[int]]


class Page:
    """What the page reads, of a coordinator on this host."""

    def __init__(self, coordinator: Coordinator, address: str) -> None:
        self._address, self._token = address, coordinator.create_token(Role.VIEW).text()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def read(self, path: str) -> Any:
        """Return a document."""
        request = Request(f"https://{self._address}{path}")
        request.add_header("Authorization", f"Bearer {self._token}")
        with urlopen(request, context=self._tls, timeout=30_000 * MS) as answer:
            return json.loads(answer.read())


def look(coordinator: Coordinator, page: Page) -> Look:
    """Ask in all ways."""
    status = json.loads(coordinator.operate("status", "run", "-o", "json").stdout)
    why = json.loads(coordinator.operate("why", "run", "-o", "json").stdout)
    ranks = page.read("/api/runs/run/ranks")
    told = [line for line in (*why["what"], *why["advice"]) if "ehind" in line or "first" in line]
    return Look(status["behind"] or "", " ".join(told), ranks["behind"])


@pytest.fixture
def address() -> Iterator[str]:
    """Return an address that is free for the page."""
    port = Port()
    yield port.address
    port.close()


@pytest.mark.slow
def test_no_rank_is_behind_in_training_until_one_holds_the_others_up(
    cluster: Cluster, address: str
) -> None:
    script = cluster.directory / "train.py"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator("--http-port", address.rpartition(":")[2])
    page = Page(coordinator, address)
    for name, size in (("gpu0", "1"), ("gpu1", "2")):
        cluster.agent(
            *("--nnodes", "2", "--nproc-per-node", size, "--name", name, "--preload", "torch"),
            str(script),
            coordinator=coordinator,
        )
    coordinator.wait_for_run(
        "run", lambda run: sum(w.step > 10 for agent in run.agents for w in agent.workers) == 3
    )
    for _ in range(LOOKS):
        assert look(coordinator, page) == ("", "", [])

    (cluster.directory / "asleep").touch()

    wait_until_sync(lambda: page.read("/api/runs/run/ranks")["behind"], 30_000 * MS)
    found = look(coordinator, page)
    who, _, _ = found.status.partition(" at step ")
    assert who.startswith("rank 2 on gpu")
    assert found.why.startswith(f"Behind the others: {found.status}.")
    assert found.page == [[2, 1]]
