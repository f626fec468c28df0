"""Which agents belong to a run, and how long a silent one stays."""
