"""Contracts of workers with the agent of their host; they age with users' environments."""
