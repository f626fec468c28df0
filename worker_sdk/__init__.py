"""What training code may know about the agent it runs under.

A guest in the user's process: imports neither ``agent`` nor ``coordinator``,
and nothing heavy.
"""
