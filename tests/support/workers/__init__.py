"""Programs that tests run as workers: standard library only, quick to start."""
