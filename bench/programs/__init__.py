"""Programs that the benchmarks start beside workers: launchers, readers, and what is compared."""
