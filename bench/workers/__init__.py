"""What workers of benchmarks run."""
