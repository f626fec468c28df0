"""The agent's conversation with the coordinator."""
