"""Which replica groups of a job train together."""
