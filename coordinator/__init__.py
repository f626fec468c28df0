"""The coordinator: decides who is in a round, which ranks they have, when to restart and when all is done.

One process holds many runs. It owns every decision and pushes it to the agents
as their desired state; it is off the training path, so training goes on while
it is down. See ``docs/architecture.md``.
"""
