"""Where the workers of a run stand, how long their steps take, and who holds the others up."""
