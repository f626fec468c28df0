"""When a run restarts after a failure, and when it does not."""
