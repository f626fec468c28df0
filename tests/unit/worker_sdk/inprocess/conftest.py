"""A process that thinks it is a worker under an agent."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.support.inprocess.peers import InMemory, Iterations, Limits
from worker_sdk.inprocess.restart import call
from worker_sdk.inprocess.restart.call_wrapper import AgentLink, Current

_CHANGED = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass
class World:
    """One real worker among puppets."""

    model: Iterations
    transport: InMemory
    limits: Limits
    link: AgentLink
    who: int


@pytest.fixture(autouse=True)
def _left_out_of_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests before this one left; to look at all of it would take most of the time.

    As the tests of garbage show, the program leaves nothing out then; to count takes as long.
    """
    gc.freeze()
    monkeypatch.setattr(call, "older_objects_left_out", nullcontext)


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Return a function that puts this process into a world."""
    for name in _CHANGED:
        # Set and deleted, so that what the test makes of it is undone.
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)

    def make(size: int = 1, who: int = 0) -> World:
        monkeypatch.setenv("RANK", str(who))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        monkeypatch.setenv("LOCAL_RANK", str(who))
        transport, limits = InMemory(), Limits()
        model = Iterations.of(size, {who: transport.deliver})
        transport.model, transport.who = model, who
        link = AgentLink(cast("Any", transport), cast("Any", limits))
        monkeypatch.setattr(Current, "link", link)
        return World(model, transport, limits, link, who)

    return make
