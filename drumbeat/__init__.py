"""Pure. What coordinator, agent and SDK share: the protocol, settings, the log."""

VERSION = "0.1.0"
"""Of the distribution; agents and coordinators tell it to each other."""
