"""What the tests with real processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster without processes yet; what is started in it ends with the test."""
    with Cluster() as cluster:
        yield cluster
