"""Runs a function or a command as an elastic job, from a program or a notebook.

``agent.launch`` and ``agent.LaunchConfig`` lead here; see ``docs/python-api.md``.
"""
