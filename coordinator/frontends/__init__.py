"""Processes that hold the connections of callers for the coordinator."""
