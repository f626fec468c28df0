"""Shell. Whether a coordinator would let an agent of this host in. Joins no run."""

from __future__ import annotations

import statistics
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drumbeat import VERSION
from drumbeat.access.client import Credentials, credentials
from drumbeat.access.diagnosis import explain
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.access.token import Role
from drumbeat.agent.doctor.model import Findings, Host, fail, ok, warn
from drumbeat.agent.doctor.network import connected
from drumbeat.text.durations import format_duration
from drumbeat.v1 import common_pb2, query_pb2, query_pb2_grpc
from drumbeat.wire.mapping import ERROR_KEY, VERSION_KEY, clock_difference_s

CALL_S = 3.0
CALLS = 5  # whose median is the latency
SLOW_S = 0.25  # of one call; within a region it takes milliseconds
CLOCK_OFF_S = 2.0  # beyond which times in logs of two hosts mislead
_NO_RUN, _NO_GENERATION = "agent-doctor", 2**32 - 1  # that no run has: the caller is judged alone
_START = "start it with `coordinator serve --host 0.0.0.0`, or correct --coordinator"
_LOOK = "look at the log of the coordinator"


def check(host: Host, address: str) -> Findings:
    """Each coordinator: name, port, TLS, token, leader, releases, clocks, latency."""
    if not host.settings.use_proxy:
        refused = fail("nothing listens there", _START)
        if (connection := (yield from connected(host, address, refused))) is None:
            return
        connection.close()
    try:
        used = credentials(host.settings, address)
    except AccessProblem as problem:
        yield fail(problem.text, problem.hint or HOW_TO_GET_IN)
        return
    proxied = ("grpc.enable_http_proxy", int(host.settings.use_proxy))
    options = [proxied, ("grpc.use_local_subchannel_pool", 1), *used.options]
    if (secret := used.channel) is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, secret, options)
    with channel:
        yield from _ask(host, address, used, channel)


def _ask(host: Host, address: str, used: Credentials, channel: grpc.Channel) -> Findings:
    """Ask for a run that cannot be: the coordinator judges the caller first."""
    run_id, began = host.settings.run_id, time.time()
    asked = query_pb2.GetReportRequest(run_id=run_id or _NO_RUN, generation=_NO_GENERATION)
    stub: Any = query_pb2_grpc.QueryServiceStub(channel)
    call = stub.GetReport.future(asked, timeout=CALL_S, metadata=used.metadata)
    status, details, trailing = call.code(), call.details(), dict(call.trailing_metadata() or ())
    ended, codes = time.time(), grpc.StatusCode
    detail = common_pb2.ErrorDetail.FromString(trailing.get(ERROR_KEY, b""))
    is_standby = detail.refusal == common_pb2.REFUSAL_NOT_LEADER
    if status is codes.PERMISSION_DENIED and not run_id:
        yield warn(f"lets this host into one run at most: {details}", "give --run-id of the job")
        return
    if status in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
        yield fail(f"refuses this host: {details}", HOW_TO_GET_IN)
        return
    if not is_standby and status is not codes.NOT_FOUND:
        why = explain(address, used) or AccessProblem(f"no answer: {details}")
        yield fail(why.text, why.hint or f"check --coordinator; {_LOOK}")
        return
    if used.tls is None:
        yield warn("connections are not encrypted", "leave --insecure out, and give a token")
    if used.token is not None and used.token.role is Role.VIEW:
        yield fail(f"the {used.token} cannot join a run", HOW_TO_GET_IN)
    else:
        yield ok(f"lets this host in ({used.token or 'without a token'})")
    if is_standby:
        every = ",".join(dict.fromkeys((*host.coordinators, detail.leader)))
        is_named, text = detail.leader in host.coordinators, f"a standby; {detail.leader} leads"
        if not detail.leader:
            yield fail(details, f"start a coordinator, or repair etcd; {_LOOK}")
        else:
            yield ok(text) if is_named else warn(text, f"name all: --coordinator {every}")
    initial = dict(call.initial_metadata() or ())
    if (version := initial.get(VERSION_KEY, VERSION)) != VERSION:
        text = f"it has release {version}, this host {VERSION}"
        yield warn(text, "install the same everywhere")
    elif VERSION_KEY in initial:  # releases before it sent none
        yield ok(f"release {version}, as on this host")
    if (off_s := clock_difference_s(initial, began, ended)) > CLOCK_OFF_S:
        text = f"its clock and that of this host differ by {format_duration(off_s)}"
        yield warn(text, "synchronise both, e.g. with chrony: times in logs mislead")
    yield from _measure(channel, is_leader=not is_standby)


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
    text = f"a call takes {format_duration(statistics.median(times))}"
    is_slow = statistics.median(times) > SLOW_S
    yield warn(text, "failures are noticed later: place it nearer") if is_slow else ok(text)
