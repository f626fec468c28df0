"""The same command line again and again: a run id can be used as often as its user likes."""

import pytest

from drumbeat.v1 import query_pb2, query_pb2_grpc
from tests.support.channels import channel_to
from tests.support.cluster import DEADLINE_S, Cluster, Coordinator

LONG = 30_000


def join(cluster: Cluster, coordinator: Coordinator, count: int, *arguments: str) -> list[int]:
    """Run the same command on ``count`` hosts; return the exit codes."""
    agents = [
        cluster.agent("--nnodes", "2", *arguments, coordinator=coordinator, run_id="exp1")
        for _ in range(count)
    ]
    return [agent.wait() for agent in agents]


def listed(coordinator: Coordinator) -> list[tuple[str, int, bool]]:
    """Return all runs the coordinator knows, and whether each has ended well."""
    with channel_to(coordinator.address) as channel:
        runs = query_pb2_grpc.QueryServiceStub(channel)
        found = runs.ListRuns(query_pb2.ListRunsRequest(), timeout=DEADLINE_S).runs
        return [
            (
                run.run_id,
                run.generation,
                runs.GetReport(
                    query_pb2.GetReportRequest(run_id=run.run_id, generation=run.generation)
                ).verdict.is_success,
            )
            for run in found
        ]


@pytest.mark.slow
def test_the_same_command_runs_again_however_the_last_run_ended(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    well = ("--no-python", "true")
    assert join(cluster, coordinator, 2, *well) == [0, 0]
    assert join(cluster, coordinator, 2, *well) == [0, 0]
    assert join(cluster, coordinator, 2, "--no-python", "false") == [1, 1]
    assert join(cluster, coordinator, 1, "--join-timeout", "2s", *well) == [1]
    coordinator.kill()
    coordinator.restart()
    assert join(cluster, coordinator, 2, *well) == [0, 0]
    assert listed(coordinator) == [
        ("exp1", 1, True),
        ("exp1", 2, True),
        ("exp1", 3, False),
        ("exp1", 4, False),
        ("exp1", 5, True),
    ]


@pytest.mark.slow
def test_a_long_report_is_shown_whole_where_people_look_for_it(cluster: Cluster) -> None:
    job = cluster.job("--nnodes", "3")
    agents = job.join_in_order((), (), ())
    workers = job.server.wait_for(3)
    workers[2].ask(f"error {'x' * LONG}.THE-END")
    workers[2].order("exit 7")
    assert [agent.wait() for agent in agents] == [1, 1, 1]
    texts = [agent.stderr for agent in agents]
    assert ["THE-END" in text.split("traceback :")[0] for text in texts] == [True, False, True]
    assert ["Cut: the whole report is on the console" in text for text in texts] == [
        False,
        True,
        False,
    ]
    assert all("exit code 7" in text for text in texts)
