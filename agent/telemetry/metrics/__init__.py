"""Metrics of an agent, for Prometheus: ``docs/metrics.md``."""
