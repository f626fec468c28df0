"""Shell. Limits for connections whose callers are not known yet.

Options of gRPC's core: how many connections there are, what each may send and hold.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from functools import cache

import grpc
import structlog

from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.limits import Limits

log = structlog.get_logger()

# Parts of the lease: a connection is probed after such a silence, and the answer may take so long.
# Together with the grace of a broken stream this is no more than a lease.
KEEPALIVE_AFTER = 0.5
KEEPALIVE_WITHIN = 0.4

# Descriptors that are not for connections: of the journal, its directory, gRPC and Python.
DESCRIPTORS_RESERVED = 128

# Enough for a thousand agents that come back while their old connections wind down.
CONNECTIONS_ENOUGH = 4_096

_M_ARENA_MAX = -8  # of <malloc.h>


def server_options(config: CoordinatorConfig) -> list[tuple[str, int]]:
    """Return gRPC's options for the connections of a server."""
    lease_ms, limits = 1000 * config.lease, config.limits
    return [
        # Two coordinators on one port must not share it, the front ends of one do.
        ("grpc.so_reuseport", int(bool(config.frontends))),
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_allowed_incoming_connections", connections_max(limits)),
        ("grpc.server_handshake_timeout_ms", round(1000 * limits.handshake_timeout_s)),
        ("grpc.max_connection_idle_ms", round(1000 * limits.idle_timeout_s)),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        ("grpc.experimental.tcp_max_read_buffer_size", limits.read_bytes_max),
        # A connection that is silent for half a lease, and so missed a beat, is probed: a
        # dead host is found within the lease, in no time of ours. An agent that is merely
        # busy answers, because a thread of gRPC's own does.
        ("grpc.keepalive_time_ms", round(KEEPALIVE_AFTER * lease_ms)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_WITHIN * lease_ms)),
        # Without it newer releases wait a minute for the answer, whatever stands above.
        ("grpc.http2.ping_timeout_ms", round(KEEPALIVE_WITHIN * lease_ms)),
        ("grpc.http2.max_pings_without_data", 0),
        # Agents probe silent connections; that must not count as abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Half of what a heartbeat costs both sides went into probing for bandwidth.
        ("grpc.http2.bdp_probe", 0),
    ]


def silence_max_s(config: CoordinatorConfig) -> float:
    """Return after which silence a connection is given up."""
    return (KEEPALIVE_AFTER + KEEPALIVE_WITHIN) * config.lease


def prepare_process(limits: Limits) -> None:
    """Raise the limit of open files, and reuse memory of connections; before threads start."""
    wanted = limits.connections_max + DESCRIPTORS_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < raised:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    if (room := connections_max(limits)) < limits.connections_max:
        tell = log.warning if room < CONNECTIONS_ENOUGH else log.debug
        tell(
            "few open files are allowed",
            message=f"this process may open few files, so of connections more than {room:,} are "
            f"refused; allow it {wanted:,} files: `ulimit -Hn`, or LimitNOFILE= of its service",
            connections_max=room,
        )
    reuse_memory()


def reuse_memory() -> None:
    """Have gRPC's threads share the memory of connections; before they start.

    Otherwise each keeps that of a flood for itself: 5,000 silent connections left 276 MB, and
    450 MB after the fourth time.
    """
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@cache
def keep_threads() -> grpc.Channel:
    """Keep gRPC's threads for the life of this process, by a channel that is never used.

    gRPC's threads end with the last server or channel, whose owner waits for them with Python's
    lock. A handshake may need that lock for the certificate: a deadlock.
    """
    return grpc.insecure_channel("127.0.0.1:1")


def connections_max(limits: Limits) -> int:
    """Return how many connections there may be, within the files that this process may open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits.connections_max
    return max(1, min(limits.connections_max, files - DESCRIPTORS_RESERVED))
