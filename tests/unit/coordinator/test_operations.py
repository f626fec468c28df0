"""The table of operations fits the protocol and the services."""

from typing import Any

import pytest

from drumbeat.coordinator.api.control_service import ControlService
from drumbeat.coordinator.api.operations import BY_METHOD, BY_PATH, OPERATIONS, Operation
from drumbeat.coordinator.api.query_service import QueryService
from drumbeat.coordinator.cluster.service import ClusterService
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.web.api.actions import action_routes
from drumbeat.coordinator.web.api.collecting import Collecting
from drumbeat.coordinator.web.api.live import Live
from drumbeat.coordinator.web.api.reading import ReadHandlers
from drumbeat.coordinator.web.exposition import Exposition
from drumbeat.v1 import control_pb2, query_pb2

PROTOCOL = {
    f"/{service.full_name}/{method.name}": method
    for service in (
        query_pb2.DESCRIPTOR.services_by_name["QueryService"],
        control_pb2.DESCRIPTOR.services_by_name["ControlService"],
    )
    for method in service.methods
}


def test_every_method_of_operators_has_one_row() -> None:
    assert sorted(row.full_name for row in OPERATIONS) == sorted(PROTOCOL)


@pytest.mark.parametrize("row", OPERATIONS, ids=BY_METHOD)
def test_a_row_fits_the_function_and_the_request_of_its_method(row: Operation) -> None:
    own = ControlService if row.service == "Control" else QueryService
    assert sum(hasattr(service, row.method) for service in (own, ClusterService)) == 1
    fields = PROTOCOL[row.full_name].input_type.fields_by_name
    given = {name for verb in row.verbs for name in (*verb.arguments, *verb.options)}
    assert len(row.verbs) == 1 or row.service == "Query"
    assert given <= set(fields) or row.service == "Query"
    assert row.scope.value != "run" or "run_id" in fields


def test_every_path_is_served() -> None:
    access: Any = None
    live = Live(Limits())
    parts: Any = (live, ReadHandlers(access, list), Collecting(live), Exposition(Limits(), None))
    routes = [*action_routes(), *(route for part in parts for route in part.routes())]
    assert sorted(route.path for route in routes) == sorted(BY_PATH)
