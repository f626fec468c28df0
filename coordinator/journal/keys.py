"""Pure. Where everything lies below the prefix of one cluster of coordinators."""

from __future__ import annotations


class Keys:
    """Names of keys. Ranges are pairs for the reading, watching and deleting of what is between."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{prefix.strip('/')}/"
        self.all = below(self.prefix)
        # Bound to the lease of who leads; the revision of its creation is the term.
        self.leader = f"{self.prefix}leader"
        # Clock and number of the latest write: each write changes it, and none that is late fits.
        self.head = f"{self.prefix}head"
        # The certificate authority that all coordinators of the cluster have.
        self.authority = f"{self.prefix}authority"
        self.members = below(f"{self.prefix}members/")
        self.runs = below(f"{self.prefix}runs/")
        self.tokens = below(f"{self.prefix}tokens/")
        self.drains = below(f"{self.prefix}drains/")
        # A ``KeepForgets``.
        self.forgets = f"{self.prefix}forgets"

    def name(self, key: str) -> str:
        """Return a key without the prefix: a journal may be moved below another one."""
        return key.removeprefix(self.prefix)

    def member(self, member_id: str) -> str:
        """Return the key of a coordinator that is there, bound to its lease."""
        return f"{self.members[0]}{member_id}"


def below(prefix: str) -> tuple[str, str]:
    """Return the range of all keys that begin with a prefix."""
    return prefix, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
