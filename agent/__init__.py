"""The agent: owns one host's worker group, for one run.

It holds one session with the coordinator, makes its host's processes match the
state the coordinator desires, and reports what they do. See ``docs/architecture.md``.
"""
