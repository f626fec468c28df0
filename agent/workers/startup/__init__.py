"""A folder that comes first on the path of a worker while Python starts, and for no longer.

It has the observer: a thread in each Python worker that answers what the worker does, and needs
nothing of the script. See docs/adr/0052-an-observer-in-every-worker.md.
"""
