"""Programs that the benchmarks start: workers, launchers, and what they are compared with."""
