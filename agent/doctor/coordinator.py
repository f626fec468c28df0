"""Shell. Whether a coordinator would let an agent of this host in. Joins no run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumbeat import VERSION
from drumbeat.access.client import credentials
from drumbeat.access.diagnosis import explain
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.access.token import Role
from drumbeat.addresses import parse_host_port
from drumbeat.agent.doctor.model import Finding, Findings, Host, fail, ok, warn
from drumbeat.agent.doctor.network import connected
from drumbeat.durations import format_duration
from drumbeat.mapping import CLOCK_KEY, ERROR_KEY, VERSION_KEY
from drumbeat.v1 import common_pb2, query_pb2, query_pb2_grpc

CALL_S = 3.0
CALLS = 5  # whose median is the latency
SLOW_S = 0.25  # of one call; within a region it takes milliseconds
CLOCK_OFF_S = 2.0  # beyond which times in logs of two hosts mislead
_NO_RUN, _NO_GENERATION = "agent-doctor", 2**32 - 1  # that no run has: the caller is judged alone
_START = "start it with `coordinator serve --host 0.0.0.0`, or correct --coordinator"
_LOOK = "look at the log of the coordinator"


def check_coordinator(host: Host, address: str) -> Findings:
    """Each coordinator: name, port, TLS, token, leader, releases, clocks, latency."""
    if not host.settings.use_proxy:
        refused = fail("nothing listens there", _START)
        if (connection := (yield from connected(host, parse_host_port(address), refused))) is None:
            return
        connection.close()
    try:
        used = credentials(host.settings, address)
    except AccessProblem as problem:
        yield fail(problem.text, problem.hint or HOW_TO_GET_IN)
        return
    proxied = ("grpc.enable_http_proxy", int(host.settings.use_proxy))
    options = [proxied, ("grpc.use_local_subchannel_pool", 1), *used.options]
    secret = used.channel
    with (
        grpc.secure_channel(address, secret, options)
        if secret is not None
        else grpc.insecure_channel(address, options)
    ) as channel:
        began = time.time()
        error = _refusal(host, channel, used.metadata)
        ended, trailing = time.time(), dict(error.trailing_metadata() or ())
        detail = common_pb2.ErrorDetail.FromString(trailing.get(ERROR_KEY, b""))
        is_standby = detail.refusal == common_pb2.REFUSAL_NOT_LEADER
        if not is_standby and error.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        ):
            found = explain(address, used) or AccessProblem(f"no answer: {error.details()}")
            yield fail(found.text, found.hint or _LOOK)
            return
        if not (is_standby or _is_let_in(host, error.code())):
            yield fail(f"refuses this host: {error.details()}", HOW_TO_GET_IN)
            return
        if used.token is not None and used.token.role is Role.VIEW:
            yield fail(f"the {used.token} cannot join a run", HOW_TO_GET_IN)
        if used.tls is None:
            yield warn("connections are not encrypted", "leave --insecure out, and give a token")
        yield ok(f"lets this host in ({used.token or 'without a token'})")
        if is_standby:
            yield _standby(host, detail.leader, str(error.details()))
        yield from _compare(dict(error.initial_metadata() or ()), began, ended)
        yield from _measure(channel, is_leader=not is_standby)


def _refusal(host: Host, channel: grpc.Channel, metadata: Any) -> Any:
    """Ask for what is not there; return the error that says whether this host is let in."""
    run_id, generation = host.settings.run_id or _NO_RUN, _NO_GENERATION
    asked = query_pb2.GetReportRequest(run_id=run_id, generation=generation)
    try:
        query_pb2_grpc.QueryServiceStub(channel).GetReport(asked, timeout=CALL_S, metadata=metadata)
    except grpc.RpcError as error:
        return error
    raise AssertionError("no run has this generation")


def _is_let_in(host: Host, status: grpc.StatusCode) -> bool:
    is_of_a_run = status is grpc.StatusCode.PERMISSION_DENIED and not host.settings.run_id
    return is_of_a_run or status is grpc.StatusCode.NOT_FOUND


def _standby(host: Host, leader: str, details: str) -> Finding:
    if not leader:
        return fail(details, f"start a coordinator, or repair etcd; {_LOOK}")
    if leader in host.coordinators:
        return ok(f"a standby; {leader} leads")
    every = ",".join((*host.coordinators, leader))
    return warn(f"a standby; {leader} leads", f"name all coordinators: --coordinator {every}")


def _compare(initial: Mapping[str, Any], began: float, ended: float) -> Findings:
    """Compare releases and clocks; coordinators of earlier releases send none."""
    version, clock = str(initial.get(VERSION_KEY, VERSION)), float(initial.get(CLOCK_KEY, began))
    if version != VERSION:
        yield warn(f"it has release {version}, this host {VERSION}", "install the same everywhere")
    if (off_s := max(began - clock, clock - ended)) > CLOCK_OFF_S:
        text = f"its clock and that of this host differ by {format_duration(off_s)}"
        yield warn(text, "synchronise both, e.g. with chrony: times in logs mislead")


def _measure(channel: grpc.Channel, *, is_leader: bool) -> Findings:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    times = list[float]()
    try:
        for _ in range(CALLS):
            began = time.monotonic()
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status
            times.append(time.monotonic() - began)
    except grpc.RpcError as error:
        yield fail(f"its health check fails: {error.code().name}", _LOOK)
        return
    if is_leader and status != health_pb2.HealthCheckResponse.SERVING:
        yield fail("it leads but decides nothing: it may be unable to write its journal", _LOOK)
    text = f"release {VERSION}; a call takes {format_duration(statistics.median(times))}"
    is_slow = statistics.median(times) > SLOW_S
    yield warn(text, "failures are noticed later: place it nearer") if is_slow else ok(text)
