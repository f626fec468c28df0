"""What the tests with real processes share."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, Coordinator


@pytest.fixture(scope="session")
def shared_coordinator() -> Iterator[Coordinator]:
    """One for all modules that use this, whose tests let it live and look at their runs alone."""
    with Cluster() as cluster:
        yield cluster.coordinator()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without processes yet; what is started in it ends with the test."""
    is_sharing = "shared_coordinator" in request.fixturenames
    shared = request.getfixturevalue("shared_coordinator") if is_sharing else None
    with Cluster(shared) as cluster:
        yield cluster
