"""Pure. What coordinator, agent and SDK share: the protocol, options, the form of logs."""

VERSION = "0.1.0"
"""Of the distribution; agents and coordinators tell it to each other."""
