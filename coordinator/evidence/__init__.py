"""Evidence of a run in one archive, for bug reports: asked for, or written when a run fails."""
