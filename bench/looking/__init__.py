"""What it costs to look at a run, and what it costs the run."""
