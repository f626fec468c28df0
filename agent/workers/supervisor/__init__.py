"""The process that is the parent of all workers, and the agent's side of it."""
