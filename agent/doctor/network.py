"""Shell. Whether hosts reach each other: names, ports, interfaces, proxies."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Generator
from contextlib import suppress
from urllib.parse import urlsplit

import click

from drumbeat.agent.doctor.model import Finding, Findings, Host, fail, ok, warn
from drumbeat.agent.workers.ports import address_towards
from drumbeat.text.addresses import HostPort, parse_host_port
from drumbeat.text.format import listed

CONNECT_S = 2.0  # for one address; a packet that is lost is sent again after 1 s
ADDRESSES_MAX = 3  # of one name that are tried
ANSWER = b"drumbeat agent doctor\n"
LISTEN_S = 60.0
GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
# Of containers, which no other host can reach. NCCL passes over docker's, too.
_VIRTUAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "lxc", "podman")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # in the order in which gRPC reads them
_FILTERED = "check the address and the routes, and open the port in firewalls"
_NO_NAME = "correct the name, add it to DNS, or repair the name servers of /etc/resolv.conf"


def connected(
    host: Host, address: str, refused: Finding
) -> Generator[Finding, None, socket.socket | None]:
    """Yield why a port cannot be reached, or return a connection; ``refused``: nothing listens.

    Blocks as long as the name service does, and for ``CONNECT_S`` per address.
    """
    name, port = parse_host_port(address)
    addresses, why = host.addresses_of(name)
    if why:
        yield fail(why, _NO_NAME)
    for at in (HostPort(ip, port) for ip in addresses[:ADDRESSES_MAX]):
        try:
            connection = socket.create_connection(at, CONNECT_S)
        except ConnectionRefusedError:
            yield refused._replace(text=f"{at} refuses the connection: {refused.text}")
        except TimeoutError:
            yield fail(f"{at} does not answer within {CONNECT_S:g} s: filtered, or down", _FILTERED)
        except OSError as error:
            yield fail(f"{at} cannot be reached: {error.strerror or error}", _FILTERED)
        else:
            names = "" if addresses == [name] else f"{name} resolves to {listed(addresses)}; "
            yield ok(f"{names}port {port} is open")
            return connection
    return None


def check_peer(host: Host, peer: str) -> Findings:
    """Each host of `--with`: its name, and whether the port is open, refused or filtered."""
    listen = f"run `agent doctor --listen {parse_host_port(peer).port}` there, then this again"
    refused, answer = warn("packets pass, but nothing listens there", listen), b""
    if (connection := (yield from connected(host, peer, refused))) is None:
        return
    with connection, connection.makefile("rb") as incoming, suppress(OSError):
        answer = incoming.read(len(ANSWER))
    if answer != ANSWER:
        yield warn("another program listens there, or a proxy answers in its place", listen)


def listen(port: int) -> int:
    """Answer ``check_peer`` of other hosts for a minute; return the exit code."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        writer.close()  # after what is written

    async def serve() -> None:
        async with await asyncio.start_server(answer, None, port):
            click.echo(f"listening at port {port} for {LISTEN_S:g} s")
            await asyncio.sleep(LISTEN_S)

    try:
        asyncio.run(serve())
    except OSError as error:
        click.echo(f"fail  port {port}: {error.strerror}; choose another one", err=True)
        return 1
    return 0


def check_interfaces(host: Host) -> Findings:
    """Network interfaces: which is used, and what `GLOO_` and `NCCL_SOCKET_IFNAME` name."""
    own = {
        name: {row.address for row in rows if row.family in (socket.AF_INET, socket.AF_INET6)}
        for name, rows in host.interfaces().items()
    }
    names = [name for name, addresses in own.items() if addresses]
    outer = [name for name in names if not name.startswith(_VIRTUAL)]
    have = listed(names) if names else "no interface"
    gloo, nccl = host.environment.get(GLOO, ""), host.environment.get(NCCL, "")
    is_there = {GLOO: {*gloo.split(",")} <= {"", *names}, NCCL: not nccl or _matches(nccl, names)}
    for variable in (variable for variable, there in is_there.items() if not there):
        named = f"{variable}={host.environment[variable]}"
        text = f"{named} names an interface that is missing or has no address"
        yield fail(text, f"this host has {have}: name one of them, or unset it")
    towards = ""
    with suppress(OSError, UnicodeError, StopIteration):  # the check of the coordinator says so
        address = address_towards(*parse_host_port(next(iter(host.coordinators))))
        towards = next(name for name in names if address in own[name])
    if len(outer) > 1 and not (gloo and nccl):
        use = towards or outer[0]
        text = f"gloo and NCCL may choose different interfaces of {listed(outer)}"
        yield warn(text, f"on all hosts, e.g. export {GLOO}={use} {NCCL}={use}")
    elif not outer:
        yield warn("no interface but loopback", "connect this host to the network of the others")
    yield ok(f"{have}{f'; {towards} leads to the coordinator' if towards else ''}")


def _matches(setting: str, names: Collection[str]) -> bool:
    """Whether NCCL takes an interface: by its beginning; ^ takes the others, = whole names."""
    is_other, rest = setting.startswith("^"), setting.removeprefix("^")
    is_whole, words = rest.startswith("="), tuple(rest.removeprefix("=").split(","))
    hits = {name for name in names if (name in words if is_whole else name.startswith(words))}
    return bool(set(names) - hits - {"lo"} if is_other else hits)


def check_own_name(host: Host) -> Findings:
    """The name of this host: whether it resolves, and to an address that others can reach."""
    destinations = (*host.coordinators, *host.peers)
    is_alone = all(where.startswith(("127.", "localhost:", "[::1]")) for where in destinations)
    addresses, text = host.addresses_of(host.name)
    is_reached = any(not ipaddress.ip_address(ip.split("%")[0]).is_loopback for ip in addresses)
    text = text or f"{host.name} resolves to {listed(addresses)}"
    if is_reached or (addresses and is_alone):
        yield ok(text)
        return
    text += ", which other hosts cannot reach" if addresses else ""
    problem = warn if is_alone or host.environment.get(GLOO) else fail
    yield problem(text, f"gloo listens there: correct it in /etc/hosts or DNS, or set {GLOO}")


def check_proxies(host: Host) -> Findings:
    """Proxies in the environment that catch connections to the coordinator."""
    lower = {name.lower(): value for name, value in host.environment.items() if value}
    name = next((name for name in _PROXIES if name in lower), "")
    if not name or not host.settings.use_proxy:
        yield ok(f"{name} is set, and ignored without --use-proxy" if name else "none")
        return
    direct = lower.get("no_grpc_proxy", lower.get("no_proxy", "")).replace(" ", "").split(",")
    proxy = urlsplit(lower[name]).hostname or "that cannot be read"
    for where in (parse_host_port(coordinator).host for coordinator in host.coordinators):
        if not where.endswith(tuple(filter(None, direct))):
            text = f"connections to {where} go through the proxy {proxy} of {name}"
            yield warn(text, f"unless you want this: no_proxy={where}, or no --use-proxy")
