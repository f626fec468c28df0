"""The coordinator: decides rendezvous, ranks, restarts and the exit barrier, and pushes them.

One process holds many runs. It owns every decision and pushes it to the agents
as their desired state; it is off the training path, so training goes on while
it is down. See ``docs/architecture.md``.
"""
