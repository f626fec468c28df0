"""The agent: owns one host's worker group, for one run."""
