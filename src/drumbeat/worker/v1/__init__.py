"""Version 1 of the contract. Additive changes only; see ``docs/protocol.md``."""
