"""Pure. A choice of standard streams, for all workers or by local rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntFlag
from typing import TypeAlias

_ENTRY = re.compile(r"([0-9]+):([0-3])")


class Std(IntFlag):
    """Standard streams of one worker."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Read ``"3"``, the same for every worker, or ``"0:1,12:2"``, by local rank.

        Raises ``ValueError`` for anything else, also if a local rank is named twice.
        """
        if vm in {"0", "1", "2", "3"}:
            return cls(int(vm))
        streams: dict[int, Std] = {}
        for entry in vm.split(","):
            match = _ENTRY.fullmatch(entry)
            if match is None:
                raise ValueError(
                    f"{vm!r} does not say which streams: allowed are 0 (none), 1 (stdout), "
                    f"2 (stderr), 3 (both), or one of these for each local rank as in '0:3,1:2'"
                )
            local_rank = int(match[1])
            if local_rank in streams:
                raise ValueError(f"{vm!r} names local rank {local_rank} twice, allowed is once")
            streams[local_rank] = cls(int(match[2]))
        return streams


StdOrMap: TypeAlias = Std | dict[int, Std]  # one value for all workers, or one for each local rank


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return the streams of each of `local_world_size` workers; none for one not named."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: Std(val_or_map.get(rank, Std.NONE)) for rank in range(local_world_size)}
