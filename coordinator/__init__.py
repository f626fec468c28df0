"""The coordinator: decides rendezvous, ranks, restarts and the exit barrier, and pushes them.

It is off the training path, so training goes on while it is down. See ``docs/architecture.md``.
"""
