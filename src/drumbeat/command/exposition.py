"""Shell. What prometheus_client is used for: histograms, and metrics of a process and its Python.

Imported by those alone who are asked for metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics

from drumbeat.command.metrics import END, Metric, Sample


class Library:
    """Histograms that are declared as ``Metric``; may be observed and read by several threads."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._registry = CollectorRegistry()
        self._histograms = {
            metric.name: Histogram(
                metric.name,
                metric.help,
                metric.labels,
                buckets=metric.buckets,
                registry=self._registry,
            )
            for metric in metrics
            if metric.kind == "histogram"
        }
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def expect(self, metric: Metric, *labels: str) -> None:
        """Show a series from the start: one that begins with its first event hides it."""
        self._histograms[metric.name].labels(*labels)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Take a value into a histogram."""
        histogram = self._histograms[metric.name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    def observe_all(self, samples: Iterable[Sample]) -> None:
        """Take values into their histograms."""
        for metric, labels, value in samples:
            self.observe(metric, value, *labels)

    def pieces(self, *, is_open: bool) -> Iterator[str]:
        """Yield the text of each, or its OpenMetrics."""
        encode: Any = openmetrics.generate_latest if is_open else generate_latest
        for family in self._registry.collect():
            # When each began is no part of the text format, where it would be more metrics.
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield encode(_One(family)).decode().removesuffix(END)


class _One:
    """A registry of one family."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def collect(self) -> Iterator[Any]:
        yield self._family
