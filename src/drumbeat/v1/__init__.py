"""Version 1 of the protocol. Additive changes only; see ``docs/protocol.md``."""
