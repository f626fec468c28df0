"""The process that holds the workers, and the agent's side of it."""
