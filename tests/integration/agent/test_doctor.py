"""`agent doctor` on hosts where something is broken: each is named, with what to do about it."""

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drumbeat.agent import cli
from drumbeat.agent.doctor import network, resources
from drumbeat.agent.doctor.checks import CHECKS, Check, examine
from drumbeat.agent.doctor.model import LEVELS, Finding, Host, ok
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.settings.doctor import DoctorSettings
from drumbeat.agent.watchdog import outside
from tests.support.nvml import FakeGpu, FakeNvml
from tests.support.processes import ROOT

OK, WARN, FAIL = LEVELS
SPACE = {"f_frsize": 4096, "f_blocks": 2**22, "f_bfree": 2**21, "f_bavail": 2**21}
AGAIN = "then this again"


def space(**given: int) -> Any:
    return lambda _: SimpleNamespace(**{**SPACE, **given})


def host_of(root: Path, **given: Any) -> Host:
    """A host below a folder where nothing is wrong; settings, files and variables as given."""
    files = {
        "proc/self/status": "CapEff:\t0000000000000000\n",
        "proc/sys/kernel/yama/ptrace_scope": "0\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.events": "oom_kill 0\n",
        **given.pop("files", {}),
    }
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    addresses = given.pop("interfaces", {"lo": "127.0.0.1", "eth0": "10.0.0.4"})
    interfaces = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in addresses.items()
    }
    names = given.pop("names", {"gpu1": "10.0.0.4"})
    fields = {name: given.pop(name) for name in ("getrlimit",) if name in given}
    return Host(
        environment=given.pop("env", {}),
        root=root,
        name="gpu1",
        resolve=lambda name, *_, **__: resolve(names, name),
        interfaces=lambda: interfaces,
        settings=DoctorSettings(**given),
        **{"getrlimit": lambda _: (2**62, 2**62), **fields},
    )


def resolve(names: dict[str, str], name: str) -> list[Any]:
    address = names.get(name, name if name[0].isdecimal() else "")
    if not address:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0))]


def problems(findings: Iterator[Finding]) -> list[Finding]:
    return [found for found in findings if found.level is not OK]


def expect(findings: Iterator[Finding], level: str, text: str, advice: str) -> None:
    """There is one problem, and this is it."""
    (found,) = problems(findings)
    assert found.level is level
    assert text in found.text
    assert advice in found.advice


LOWERED: Callable[[int, int], Any] = lambda kind, soft: {  # noqa: E731
    "getrlimit": lambda asked: (soft if asked == kind else 2**62, 2**62)
}
CGROUP = "sys/fs/cgroup/"
MEMORY = {f"{CGROUP}memory.max": f"{2**30}\n", f"{CGROUP}memory.current": f"{2**30 - 2**20}\n"}
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/job\n1:cpu:/job\n",
    f"{CGROUP}memory/memory.oom_control": "oom_kill 0\n",
    f"{CGROUP}cpu/cpu.cfs_quota_us": "50000\n",
    f"{CGROUP}cpu/cpu.cfs_period_us": "100000\n",
}
NCCL, GLOO = {"NCCL_SOCKET_IFNAME": "ib"}, {"GLOO_SOCKET_IFNAME": "eth9"}
PROXY = {"http_proxy": "http://user:hunter2pass@proxy:3128"}
SEVERAL = {"lo": "127.0.0.1", "eth0": "10.0.0.4", "ib0": "10.1.0.4", "docker0": "172.17.0.1"}
OUT = {"coordinator": "10.0.0.1:29400"}

SHM, TMPDIR, LOG_DIR = (
    partial(resources.check_space, what=what) for what in (resources.SHM, "TMPDIR", "--log-dir")
)

BROKEN: list[tuple[str, Any, dict[str, Any], str, str, str]] = [
    ("small shm", SHM, {"statvfs": space(f_blocks=2**14, f_bavail=2**14)},
     WARN, "64.0 MiB free, less than 1.0 GiB", "--shm-size"),
    ("full shm", SHM, {"statvfs": space(f_bavail=0)},
     FAIL, "0.0 MiB free", "free space there"),
    ("low space", TMPDIR, {"statvfs": space(f_bavail=2**16)},
     WARN, "256.0 MiB free", "as TMPDIR"),
    ("missing TMPDIR", TMPDIR, {"env": {"TMPDIR": "/no/where"}},
     FAIL, "/no/where cannot be written", "as TMPDIR"),
    ("log directory is a file", LOG_DIR, {"log_dir": __file__},
     FAIL, "cannot be written: Not a directory", "--log-dir"),
    ("few files", resources.check_limits, LOWERED(resource.RLIMIT_NOFILE, 256),
     WARN, "at most 256 open files", "ulimit -n"),
    ("few processes", resources.check_limits, LOWERED(resource.RLIMIT_NPROC, 100),
     WARN, "at most 100 processes", "ulimit -u"),
    ("locked memory with RDMA", resources.check_limits,
     LOWERED(resource.RLIMIT_MEMLOCK, 65536) | {"files": {"sys/class/infiniband/mlx5_0": ""}},
     WARN, "65536 bytes of locked memory", "memlock=-1"),
    ("memory at the limit", resources.check_cgroup, {"files": MEMORY},
     FAIL, "1.0 MiB left of the limit of 1.0 GiB", "raise the memory"),
    ("killed for memory", resources.check_cgroup,
     {"files": {f"{CGROUP}memory.events": "oom_kill 3\n"}},
     WARN, "killed 3 processes", "raise the memory"),
    ("pids at the limit", resources.check_cgroup,
     {"files": {f"{CGROUP}pids.max": "600\n", f"{CGROUP}pids.current": "590\n"}},
     WARN, "590 of 600 processes", "--pids-limit"),
    ("half a processor", resources.check_cgroup,
     {"files": {f"{CGROUP}cpu.max": "50000 100000\n"}},
     WARN, "a quota of 0.5 processors", "OMP_NUM_THREADS"),
    ("half a processor of version 1", resources.check_cgroup, {"files": VERSION_1},
     WARN, "a quota of 0.5 processors", "OMP_NUM_THREADS"),
    ("ptrace for root only", resources.check_tracing,
     {"files": {"proc/sys/kernel/yama/ptrace_scope": "1\n"}},
     WARN, "ptrace_scope is 1", "kernel.yama.ptrace_scope=0"),
    ("gloo interface", network.check_interfaces, {"env": GLOO},
     FAIL, "GLOO_SOCKET_IFNAME=eth9", "this host has lo and eth0"),
    ("NCCL interface", network.check_interfaces, {"env": NCCL},
     FAIL, "NCCL_SOCKET_IFNAME=ib", "this host has lo and eth0"),
    ("NCCL takes none", network.check_interfaces, {"env": {"NCCL_SOCKET_IFNAME": "^eth"}},
     FAIL, "NCCL_SOCKET_IFNAME=^eth", "unset it"),
    ("several interfaces", network.check_interfaces, {"interfaces": SEVERAL},
     WARN, "different interfaces of eth0 and ib0", "export GLOO_SOCKET_IFNAME=eth0"),
    ("no network", network.check_interfaces, {"interfaces": {"lo": "127.0.0.1"}},
     WARN, "no interface but loopback", "connect this host"),
    ("no interface", network.check_interfaces, {"interfaces": {}},
     WARN, "no interface but loopback", "connect this host"),
    ("own name is loopback", network.check_own_name, {"names": {"gpu1": "127.0.1.1"}} | OUT,
     FAIL, "gpu1 resolves to 127.0.1.1, which other hosts cannot reach", "/etc/hosts"),
    ("own name is unknown", network.check_own_name, {"names": {}} | OUT,
     FAIL, "gpu1 does not resolve", "GLOO_SOCKET_IFNAME"),
    ("own name is unknown, gloo has another", network.check_own_name,
     {"names": {}, "env": {"GLOO_SOCKET_IFNAME": "eth0"}} | OUT,
     WARN, "gpu1 does not resolve", "GLOO_SOCKET_IFNAME"),
    ("proxy", network.check_proxies,
     {"env": PROXY | {"no_proxy": "corp"}, "use_proxy": True} | OUT,
     WARN, "10.0.0.1 go through the proxy proxy of http_proxy", "no_proxy=10.0.0.1"),
    ("variables", resources.check_variables,
     {"env": {"MASTER_ADDR": "a", "PET_NNODES": "2", "LOCAL_RANK": "0", "PATH": "/bin"}},
     WARN, "LOCAL_RANK, MASTER_ADDR and PET_NNODES", "unset LOCAL_RANK MASTER_ADDR PET_NNODES"),
    ("CUDA_VISIBLE_DEVICES without GPUs", resources.check_gpus,
     {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
     FAIL, "names 0, which is missing", "nvidia-smi -L"),
    ("Python is missing", resources.check_torch, {"env": {"PYTHON_EXEC": "/no/python"}},
     FAIL, "/no/python: No such file", "PYTHON_EXEC"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "given", "level", "text", "advice"),
    [pytest.param(*row, id=name) for name, *row in BROKEN],
)
def test_what_is_broken_is_named_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    check: Any,
    given: dict[str, Any],
    level: str,
    text: str,
    advice: str,
) -> None:
    host = host_of(tmp_path, **{name: given[name] for name in given if name != "statvfs"})
    monkeypatch.setattr(os, "statvfs", given.get("statvfs", space()))
    expect(check(host), level, text, advice)


@pytest.mark.parametrize(
    "check",
    [row for row in CHECKS if row.name not in ("torch", "leftovers", "tracing")],
    ids=lambda row: row.name,
)
def test_a_sound_host_has_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    monkeypatch.setattr(os, "statvfs", space())
    host = host_of(tmp_path, log_dir=str(tmp_path / "made/later"), env={"TMPDIR": str(tmp_path)})
    for target in check.targets(host):
        assert not problems(check.run(host, target) if target else check.run(host))
    assert not (tmp_path / "made").exists(), "it changes nothing"


def test_py_spy_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "find_program", lambda: None)
    expect(resources.check_tracing(host_of(tmp_path)), WARN, "not installed", "pip install")


@pytest.mark.parametrize(
    ("gpus", "env", "level", "text"),
    [
        (None, {}, WARN, "nvidia-ml-py is not installed"),
        ([], {}, FAIL, "2 GPUs, but the driver does not answer"),
        (["GPU-a", "GPU-b"], {"CUDA_VISIBLE_DEVICES": "1,2"}, FAIL, "names 2, which is missing"),
        (["GPU-a", "GPU-b"], {"CUDA_VISIBLE_DEVICES": "GPU-c"}, FAIL, "names GPU-c"),
        (["GPU-a", "GPU-broken"], {}, FAIL, "GPU 1 (GPU-broken) needs a reset"),
    ],
)
def test_gpus_that_cannot_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: list[str] | None,
    env: dict[str, str],
    level: str,
    text: str,
) -> None:
    library: Any = None if gpus is None else FakeNvml([FakeGpu(uuid=uuid) for uuid in gpus])
    if library is not None:
        library.nvmlDeviceGetFieldValues = lambda gpu, _: [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=int("broken" in gpu.uuid)))
        ]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    host = host_of(tmp_path, env=env, files={"dev/nvidia0": "", "dev/nvidia1": ""})
    (found,) = problems(resources.check_gpus(host))
    assert found.level is level
    assert text in found.text
    assert found.advice


@pytest.mark.parametrize(
    ("lines", "level", "text"),
    [
        ("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", WARN, "No module"),
        ("echo 'ImportError: libcudart.so.12' >&2; exit 1", FAIL, "libcudart.so.12"),
        ('echo \'["2.9", "CPU only", false]\'', FAIL, "torch 2.9 (CPU only) cannot use the GPUs"),
        ("echo surprise", FAIL, "cannot be used"),
        ("echo 3", FAIL, "cannot be used"),
        ("sleep 60", WARN, "did not answer within"),
    ],
)
def test_a_torch_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, level: str, text: str
) -> None:
    monkeypatch.setattr(resources, "TORCH_S", 0.3 if "sleep" in lines else 20.0)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{lines}\n")
    python.chmod(0o755)
    host = host_of(tmp_path, env={"PYTHON_EXEC": str(python)}, files={"dev/nvidia0": ""})
    (found,) = problems(resources.check_torch(host))
    assert found.level is level
    assert text in found.text
    assert found.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
@pytest.mark.parametrize(
    ("options", "said"),
    [("size=64k", "0.0 MiB free, less than"), ("nr_inodes=2", "written: No space left on device")],
)
def test_a_tmpfs_without_space_or_inodes_is_red(tmp_path: Path, options: str, said: str) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount a file system")
    try:
        (tmp_path / "full").write_bytes(bytes(64 * 1024))
        host = Host(settings=DoctorSettings(), environment={"TMPDIR": str(tmp_path)})
        expect(resources.check_space(host, "TMPDIR"), FAIL, said, "free space")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_processes_that_a_dead_agent_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    living = PrivateDirectory()
    dead = tmp_path / f"{living.path.name}-dead"  # no process holds it
    living.close()
    dead.mkdir(mode=0o700)
    host = host_of(tmp_path)
    assert not problems(resources.check_leftovers(host))
    with subprocess.Popen(["sleep", "60"], env={"WORKER": str(dead)}) as left:
        expect(resources.check_leftovers(host), WARN, f"pid {left.pid}", "agent join")
        left.kill()


@pytest.mark.parametrize("hidden", ["-1", "", "NoDevFiles"])
def test_gpus_that_are_hidden_on_purpose_are_no_problem(tmp_path: Path, hidden: str) -> None:
    host = host_of(tmp_path, env={"CUDA_VISIBLE_DEVICES": hidden})
    assert not problems(resources.check_gpus(host))


def test_interrupted_it_ends_without_a_traceback() -> None:
    command = [sys.executable, "-m", "drumbeat", "agent", "doctor", "--listen"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        [*command, str(port)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as listening:
        assert listening.stdout is not None
        assert str(port) in listening.stdout.readline()
        listening.send_signal(signal.SIGINT)
        _, errors = listening.communicate(timeout=30)
    assert (listening.returncode, errors) == (130, "")


@pytest.mark.parametrize("verb", ["doctor", "status"])
@pytest.mark.parametrize(("sink", "said"), [("/dev/full", "cannot be written"), (None, "")])
def test_output_that_cannot_be_written_gives_no_traceback(
    sink: str | None, said: str, verb: str
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)  # as `head` does
    if sink is not None:
        os.close(write_end)
        write_end = os.open(sink, os.O_WRONLY)
    asked = subprocess.run(
        [sys.executable, "-m", "drumbeat", "agent", verb],
        env={**os.environ, "PYTHON_EXEC": "/bin/true"},
        cwd=ROOT,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert asked.returncode == 1
    assert said in asked.stderr
    assert len(asked.stderr.splitlines()) == bool(said)


@contextlib.contextmanager
def dead_mount(path: Path) -> Iterator[None]:
    """A FUSE file system whose server never answers."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("there is no FUSE here")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"dead", str(path).encode(), b"fuse.dead", 0, options):
        os.close(device)
        pytest.skip("this container may not mount a file system")
    try:
        yield
    finally:
        os.close(device)  # ends the calls that wait
        libc.umount2(str(path).encode(), 2)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_dead_mount_is_red_and_holds_nothing_up(tmp_path: Path) -> None:
    dead = Check("TMPDIR", TMPDIR, "unmount", 0.3)
    live = Check("limits", resources.check_limits)
    with dead_mount(tmp_path):
        host = Host(settings=DoctorSettings(), environment={"TMPDIR": str(tmp_path)})
        began = time.monotonic()
        first, *others = asyncio.run(examine(host, (dead, live)))
        assert time.monotonic() - began < 2
        assert (first["check"], first["level"]) == ("TMPDIR", FAIL)
        assert (first["text"], first["advice"]) == ("no answer within 0.3 s", "unmount")
        assert others
        with subprocess.Popen(
            [sys.executable, "-m", "drumbeat", "agent", "doctor", "-o", "json"],
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHON_EXEC": "/bin/true"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
        ) as command:
            output, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    (red,) = [row for row in json.loads(output)["findings"] if row["target"] == "TMPDIR"]
    assert red["level"] == "fail"
    assert "unmount" in red["advice"]


async def test_a_name_server_that_never_answers_is_red_and_keeps_what_was_found(
    tmp_path: Path,
) -> None:
    answered = threading.Event()
    names = Check("own name", network.check_own_name, "check /etc/resolv.conf", 0.2)
    host = replace(host_of(tmp_path), resolve=lambda *_, **__: answered.wait(30))

    def half(_: Host) -> Iterator[Finding]:
        yield ok("before")
        answered.wait(30)

    try:
        rows = await examine(host, (names, Check("half", half, "wait", 0.2)))
    finally:
        answered.set()
    late = "no answer within 0.2 s"
    assert (rows[0]["level"], rows[0]["text"]) == (FAIL, late)
    assert rows[0]["advice"] == "check /etc/resolv.conf"
    assert [row["text"] for row in rows[1:]] == ["before", late]


async def test_a_check_that_breaks_does_not_hide_the_others_and_secrets_are_hidden(
    tmp_path: Path,
) -> None:
    def broken(_: Host) -> Iterator[Finding]:
        yield ok("the password is hunter2pass, the proxy http://me:hunter3@proxy")
        raise ZeroDivisionError("hunter2pass")

    host = host_of(tmp_path, env={"DB_PASSWORD": "hunter2pass"})
    rows = (Check("broken", broken), Check("limits", resources.check_limits))
    found = await examine(host, rows)
    assert [(row["check"], row["level"]) for row in found] == [
        ("broken", OK),
        ("broken", FAIL),
        ("limits", OK),
    ]
    assert "hunter" not in str(found)
    assert "ZeroDivisionError" in found[1]["text"]


def peer(address: str) -> tuple[Host, str]:
    return Host(settings=DoctorSettings(peers=address), environment={}), address


@contextlib.contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """Listens; says ``answer`` to the first connection, or never accepts one."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer or b"")

        thread = threading.Thread(target=serve)
        if answer is not None:
            thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        if answer is not None:
            thread.join()


def test_a_peer_that_listens_refuses_or_is_another_program(monkeypatch: Any) -> None:
    monkeypatch.setattr(network, "CONNECT_S", 0.3)
    with listener(network.ANSWER) as address:
        assert not problems(network.check_peer(*peer(address)))
    expect(network.check_peer(*peer(address)), WARN, "refuses the connection", AGAIN)
    for other in (b"SSH-2.0-OpenSSH_9.2p1\r\n", None):
        with listener(other) as address:
            expect(network.check_peer(*peer(address)), WARN, "another program", AGAIN)


def test_a_peer_behind_a_firewall_is_told_from_one_that_refuses(monkeypatch: Any) -> None:
    """A full backlog drops packets as a firewall does."""
    monkeypatch.setattr(network, "CONNECT_S", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        contextlib.ExitStack() as held,
    ):
        for _ in range(4):
            queued = held.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(server.getsockname())
        address = f"127.0.0.1:{server.getsockname()[1]}"
        expect(network.check_peer(*peer(address)), FAIL, "filtered", "firewalls")


def test_a_peer_whose_name_is_unknown(tmp_path: Path) -> None:
    found = network.check_peer(host_of(tmp_path), "gpu9:29400")
    expect(found, FAIL, "gpu9 does not resolve", "add it to DNS")


@pytest.mark.slow
def test_listening_answers_many_at_once_and_a_port_in_use_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "LISTEN_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert network.listen(port) == 1
    assert "choose another one" in capsys.readouterr().err
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(network.listen(port)))
    thread.start()
    while "listening" not in capsys.readouterr().out:
        assert thread.is_alive()
        time.sleep(0.01)
    with contextlib.ExitStack() as held:  # that say nothing, and stay
        for _ in range(20):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert not problems(network.check_peer(*peer(f"127.0.0.1:{port}")))
    thread.join()
    assert codes == [0]


def test_a_limit_of_a_shell_is_seen(tmp_path: Path) -> None:
    script = 'ulimit -n 300 && exec "$0" -m drumbeat agent doctor -o json'
    asked = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable],
        env={**os.environ, "PYTHON_EXEC": "/bin/true", "TMPDIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    document = json.loads(asked.stdout)
    assert set(document) == {"host", "version", "findings"}
    assert {"check", "target", "level", "text", "advice"} == set(document["findings"][0])
    (limit,) = [row for row in document["findings"] if "open files" in row["text"]]
    assert (limit["check"], limit["level"]) == ("limits", "warn")
    assert "at most 300 open files" in limit["text"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--with", "a b"), "--with"),
        (("--with", ",".join(f"h{n}" for n in range(17))), "--with"),
        (("--listen", "0"), "--listen"),
        (("-o", "xml"), "--output"),
        (("--coordinator", "h", "--tls-cert", "x"), "--tls-key"),
        (("--coordinator", "h", "--token", "secret-text"), "--token"),
    ],
)
def test_wrong_usage_is_refused(
    arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *arguments], run=lambda _: 0) == 2
    shown = capsys.readouterr().err
    assert word in shown
    assert "secret-text" not in shown


def test_the_page_lists_every_check() -> None:
    page = (ROOT / "docs/doctor.md").read_text()
    rows = [
        f"| {check.name} | {(check.run.__doc__ or '').partition(chr(10))[0]} |" for check in CHECKS
    ]
    assert [line for line in page.splitlines() if line in rows] == rows
