"""In-process restart for tests: values, a host, a round, runs, and the peers of a worker."""
