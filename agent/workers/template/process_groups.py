"""Shell. Keeps torch's first process group alive, as without preloading."""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_SETTER = "_update_default_pg"  # called with a group when it becomes the default one


def keep_first_group() -> None:
    """Have torch's first process group live until the process ends, as without preloading.

    There the first DistributedDataParallel imports ``torch._dynamo``, and functions defined in
    the course of that have the group as the default of an argument. A gloo group that ends with
    its model instead stands still: it waits for a thread that waits for Python (torch 2.13).
    """
    module: Any = sys.modules.get(_MODULE)
    update = getattr(module, _SETTER, None)
    if update is None:
        return

    def update_once(*groups: Any, **named: Any) -> Any:
        given = [group for group in (*groups, *named.values()) if group is not None]
        if given:
            update.first_group = given
            setattr(module, _SETTER, update)
        return update(*groups, **named)

    setattr(module, _SETTER, update_once)
