"""Shell. What the environment says of the agent this process works under."""

from __future__ import annotations

import os
from dataclasses import dataclass

from worker_sdk import context


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How to reach the agent; each is empty if there is none."""

    directory: str
    """The worker's private directory."""
    socket: str
    """Target of the agent's service, as gRPC understands it."""
    token: str
    """What this worker is known by."""

    @classmethod
    def from_env(cls) -> WorkerConfig:
        """Read the environment of this process."""
        socket = os.environ.get(context.WORKER_SOCKET, "")
        return cls(
            directory=os.environ.get(context.WORKER_DIR, ""),
            socket=f"unix:{socket}" if socket.startswith("/") else socket,
            token=os.environ.get(context.WORKER_TOKEN, ""),
        )
