"""The observer: a thread in each Python worker that answers what the worker does.

It needs nothing of the script. See docs/adr/0052-an-observer-in-every-worker.md.
"""
