"""In-process restart, as the coordinator decides it."""
