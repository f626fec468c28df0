"""Pure. The names of the keys of a journal, below the prefix of one cluster."""

from __future__ import annotations


class Keys:
    """Names of keys. A range is a pair: all keys from the first up to the second."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{prefix.strip('/')}/"
        self.all = below(self.prefix)
        # Bound to the lease of the leader; the revision of its creation is the term.
        self.leader = f"{self.prefix}leader"
        # Clock and number of the latest write. Each write changes it: a late one is refused.
        self.head = f"{self.prefix}head"
        # The certificate authority that all coordinators of the cluster have.
        self.authority = f"{self.prefix}authority"
        self.members = below(f"{self.prefix}members/")
        self.runs = below(f"{self.prefix}runs/")
        self.tokens = below(f"{self.prefix}tokens/")
        self.drains = below(f"{self.prefix}drains/")
        self.quorums = below(f"{self.prefix}quorums/")
        # A ``KeepForgets``.
        self.forgets = f"{self.prefix}forgets"

    def name(self, key: str) -> str:
        """Return a key without the prefix, so that a journal can move below another prefix."""
        return key.removeprefix(self.prefix)

    def member(self, member_id: str) -> str:
        """Return the key of a coordinator, which is bound to its lease."""
        return f"{self.members[0]}{member_id}"


def below(prefix: str) -> tuple[str, str]:
    """Return the range of all keys that begin with a prefix."""
    return prefix, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
