"""Shell. `torchrun --rdzv-backend=drumbeat`: see docs/torchrun.md."""

from collections.abc import Callable
from typing import Any


def handler_creator() -> Callable[[Any], Any]:
    """Return what makes a handler of torch's ``RendezvousParameters``.

    torch calls this, the entry point of ``torchrun.handlers``, in every process that imports its
    rendezvous, workers included, so what a handler needs is loaded when one is made.
    """

    def create(parameters: Any) -> Any:
        from drumbeat.torchrun.handler import DrumbeatRendezvous  # noqa: PLC0415

        return DrumbeatRendezvous(parameters)

    return create
