"""What a scrape has brought."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families


def values(body: bytes) -> dict[tuple[str, ...], float]:
    """Return all samples by name and labels, of a text."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(body.decode())
        for sample in family.samples
    }


def names(body: bytes) -> set[str]:
    """Return the names of all families of OpenMetrics, of which the parser takes nothing else."""
    found = open_families(body.decode())  # type: ignore[no-untyped-call]
    return {family.name for family in found}
