"""A coordinator whose etcd does not answer as it starts."""

from tests.support.cluster import Cluster
from tests.support.etcd import Port


def test_it_says_that_it_waits_and_ends_when_it_is_told_to(cluster: Cluster) -> None:
    port = Port()
    try:
        head = cluster.process(
            "head",
            *(
                "coordinator",
                "serve",
                "--port",
                "0",
                "--state-dir",
                str(cluster.directory / "head"),
            ),
            *("--journal", f"etcd://{port.address}"),
        )
        head.wait_for_line("the coordinator waits for etcd: .*Connection refused")
        head.terminate()
        assert head.wait() == 0
    finally:
        port.close()
