"""Pure. How much memory all clients of an agent's stores use, and which uses most."""

from __future__ import annotations

from collections.abc import Callable

from drumbeat.agent.workers.store.commands import CommandError

# The least that there is, how much more there is for each client, and the most. A round of
# thousands of ranks needs more than the two dozen connections of a stranger are given.
LEAST_BYTES = 36 * 1024 * 1024
CLIENT_BYTES = 512 * 1024
MOST_BYTES = 256 * 1024 * 1024


class Budget:
    """Counts bytes by client: unfinished messages, values, waiting keys, unsent answers.

    Beyond the limit the client that holds most is let go, by ``let_go``, with all that it holds.
    """

    def __init__(self) -> None:
        self.let_go: Callable[[int], None] = self.forget
        self._held: dict[int, int] = {}
        self._total = 0
        self._clients_most = 0

    @property
    def limit(self) -> int:
        """How much all clients may hold; it does not shrink when some leave."""
        return min(MOST_BYTES, LEAST_BYTES + self._clients_most * CLIENT_BYTES)

    def met(self, clients: int) -> None:
        """Take note of how many clients there are."""
        self._clients_most = max(self._clients_most, clients)

    def hold(self, client: int, size: int) -> None:
        """Count more bytes. Raises ``CommandError`` if there is no room and this one holds most."""
        self._change(client, size)
        while self._total > self.limit:
            largest = max(self._held, key=self._held.__getitem__)
            if largest == client:
                self._change(client, -size)
                raise CommandError(f"clients hold {self.limit} bytes, this client most of them")
            self.let_go(largest)
            self.forget(largest)

    def release(self, client: int, size: int) -> None:
        """Count less bytes of a client that is not forgotten."""
        if client in self._held:
            self._change(client, -size)

    def forget(self, client: int) -> None:
        """Count nothing of a client any more."""
        self._total -= self._held.pop(client, 0)

    def _change(self, client: int, more: int) -> None:
        self._total += more
        self._held[client] = self._held.get(client, 0) + more
        if not self._held[client]:
            del self._held[client]
