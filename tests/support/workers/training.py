"""A worker that trains with torch, in a function that starts again in process.

``python -m tests.support.workers.training MODE DIRECTORY``. Modes: ``clean`` and ``faulty``
train, the second with a fault in each of the first iterations; ``stuck`` fails on one rank while
the other waits for it in a collective, and then has that rank try to come to the iteration that is
over; ``stuck-nccl`` does the first on two GPUs. Each step of note is a line on standard output.
"""

from __future__ import annotations

import datetime as dt
import gc
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_sdk import inprocess

MODE, DIRECTORY = sys.argv[1], Path(sys.argv[2])
FIRST_RANK = int(os.environ["RANK"])
DEVICE = "cuda" if MODE == "stuck-nccl" else "cpu"
STEPS = 24
SAVED_EVERY = 3
SHARES = 4
"""Of each batch; as many ranks learn from them as there are, and learn the same."""
SAMPLES = 16
"""Of each share."""
FAULT_STEP = 5
"""Counted from where an iteration goes on; it is not one after which is saved."""
SOFT_TIMEOUT_S = 4.0
FAULTS = (
    ("before the collective", (1,)),
    ("after the collective", (2,)),
    ("silence", (3,)),
    ("in a hook of backward", (0,)),
    ("before the collective", (0, 1)),
)
"""Of each iteration from the first on: what happens, and to which ranks."""
LATE_S = 1.0
PORTS: list[int] = []
"""Of each iteration of this process, where active rank 0 listened."""


def tell(what: str, **more: object) -> None:
    words = [f"{name}={value}" for name, value in more.items()]
    os.write(1, (" ".join([f"w{FIRST_RANK} {what}", *words]) + "\n").encode())


def begin(call: inprocess.CallWrapper) -> None:
    PORTS.append(int(os.environ["MASTER_PORT"]))
    tell("enter", iteration=call.iteration, pid=os.getpid(), port=PORTS[-1])
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")


class Faults:
    """Those of this rank in this iteration, each at its place in the step."""

    def __init__(self, iteration: int) -> None:
        self._kind = ""
        if MODE == "faulty" and iteration < len(FAULTS):
            kind, ranks = FAULTS[iteration]
            if dist.get_rank() in ranks:
                self._kind = kind
        self.is_due = False

    def at(self, place: str) -> None:
        if self.is_due and place == self._kind:
            tell("fault", kind=place.replace(" ", "-"))
            if place == "silence":
                time.sleep(600)
            raise ValueError(f"told to fail {place}")


class Optimizer:
    """Descends with momentum. To load those of torch takes as long as to load torch."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self.momenta = [torch.zeros_like(parameter) for parameter in self._parameters]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for parameter, momentum in zip(self._parameters, self.momenta, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.sub_(momentum, alpha=1e-2)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what this rank learns from in a step; the same whenever the step is taken."""
    drawn = []
    for share in range(dist.get_rank(), SHARES, dist.get_world_size()):
        generator = torch.Generator().manual_seed(1000 * step + share)
        drawn.append(torch.randn(SAMPLES, 8, dtype=torch.float64, generator=generator))
    given = torch.cat(drawn)
    return given, torch.sin(given).sum(dim=1, keepdim=True)


def load(model: nn.Module, optimizer: Optimizer) -> int:
    """Go on from the checkpoint; return how many steps it has behind it."""
    path = DIRECTORY / "checkpoint.pt"
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.momenta = saved["momenta"]
    return int(saved["steps"])


def save(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    state = {"model": model.state_dict(), "momenta": optimizer.momenta, "steps": steps}
    torch.save(state, DIRECTORY / "checkpoint.new")
    (DIRECTORY / "checkpoint.new").replace(DIRECTORY / "checkpoint.pt")


@inprocess.Wrapper(soft_timeout=SOFT_TIMEOUT_S, hard_timeout=60)
def train(call: inprocess.CallWrapper) -> float:
    begin(call)
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    model = DistributedDataParallel(bare)
    optimizer = Optimizer(bare)
    first = load(bare, optimizer)
    dist.barrier()  # nobody saves before all have loaded
    faults = Faults(call.iteration)
    hooked = bare[0].weight
    hooked.register_hook(lambda _: faults.at("in a hook of backward"))
    loss = torch.zeros(())
    for step in range(first, STEPS):
        faults.is_due = step == first + FAULT_STEP
        given, wanted = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(given), wanted)
        faults.at("silence")
        faults.at("before the collective")
        loss.backward()
        faults.at("after the collective")
        optimizer.step()
        call.ping()
        if dist.get_rank() == 0 and (step + 1) % SAVED_EVERY == 0:
            with call.atomic():
                save(bare, optimizer, step + 1)
    total = loss.detach() / dist.get_world_size()
    dist.all_reduce(total)
    weights = torch.cat([parameter.detach().flatten() for parameter in bare.parameters()])
    tell("trained", loss=total.item().hex(), weights=weights.sum().item().hex())
    # Before the group, or the model would wait for its threads with the interpreter's lock held.
    del model, optimizer, hooked
    gc.collect()
    dist.destroy_process_group()
    return float(total)


@inprocess.Wrapper(soft_timeout=60, hard_timeout=90)
def wait_for_others(call: inprocess.CallWrapper) -> float:
    begin(call)
    ones = torch.ones(8, device=DEVICE)
    dist.all_reduce(ones)
    if call.iteration == 0:
        if dist.get_rank() == 1:
            # The other is to be in the collective by then; if it is not, the test is easier.
            time.sleep(LATE_S)
            raise ValueError("told to fail")
        tell("waits", at=time.monotonic())
        try:
            dist.all_reduce(ones)
            ones.sum().item()  # of NCCL, only this waits
        except BaseException as error:
            tell("released", after=time.monotonic(), by=type(error).__name__)
            raise
        raise AssertionError("the collective came to an end")
    if MODE == "stuck" and dist.get_rank() == 1:
        come_late()
    dist.all_reduce(ones)
    value = float(ones[0])
    dist.destroy_process_group()
    return value


def come_late() -> None:
    """Try to come to the iteration before this one."""
    try:
        dist.TCPStore(
            os.environ["MASTER_ADDR"],
            PORTS[0],
            is_master=False,
            timeout=dt.timedelta(seconds=LATE_S),
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        tell("late", refused=type(error).__name__)
    else:
        tell("late", refused=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    value = train() if MODE in ("clean", "faulty") else wait_for_others()
    tell("returned", value=value)
