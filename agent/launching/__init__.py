"""Runs a function or a command as an elastic job, from a program; see ``docs/python-api.md``."""
