"""Structured events and metrics of an agent, and who takes them. See ``docs/telemetry.md``."""

from agent.telemetry.items import Event, EventHandler, EventSource, Metric

__all__ = ["Event", "EventHandler", "EventSource", "Metric"]
