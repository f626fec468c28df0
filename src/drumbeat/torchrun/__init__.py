"""Shell. `torchrun --rdzv-backend=drumbeat`: rendezvous by the coordinator; see docs/torchrun.md.

torch loads this in every process that imports its rendezvous, workers included, so what it needs
is loaded when a rendezvous is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def create_handler(parameters: Any) -> Any:
    """Return the handler of one rendezvous, for torch's ``RendezvousParameters``."""
    from drumbeat.torchrun.handler import DrumbeatRendezvous  # noqa: PLC0415

    return DrumbeatRendezvous(parameters)


def handler_creator() -> Callable[[Any], Any]:
    """Return what makes handlers. torch calls this, the entry point of ``torchrun.handlers``."""
    return create_handler
