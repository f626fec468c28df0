"""The phases of a run, from gathering agents to its end."""
