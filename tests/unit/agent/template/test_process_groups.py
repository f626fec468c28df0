"""Torch's first process group is kept, the others are not."""

import gc
import sys
import weakref
from types import ModuleType

import pytest

from drumbeat.agent.workers.template.process_groups import keep_first_group

NAME = "torch.distributed.distributed_c10d"


class Group:
    """Stands for a process group."""


def test_the_first_group_is_kept_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Group] | None] = []

    def update(group: Group | None) -> None:
        seen.append(None if group is None else weakref.ref(group))

    module = ModuleType(NAME)
    module._update_default_pg = update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, NAME, module)
    keep_first_group()
    for group in (None, Group(), None, Group()):
        module._update_default_pg(group)
    del group
    gc.collect()
    assert [each is not None and each() is not None for each in seen] == [False, True, False, False]
    assert module._update_default_pg is update


def test_a_torch_that_does_it_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    keep_first_group()
    assert not hasattr(module, "_update_default_pg")
    monkeypatch.delitem(sys.modules, NAME)
    keep_first_group()
