"""Metrics of a coordinator, for Prometheus: ``docs/metrics.md``."""
