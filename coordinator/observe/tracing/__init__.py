"""Rounds, restarts and iterations of runs as traces for OpenTelemetry."""
