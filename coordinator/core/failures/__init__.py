"""Failure records: which are kept, and which one is the cause."""
