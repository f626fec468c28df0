"""Shell. The template of a host's workers: imports what they need, and forks them when asked.

It has one thread, and waits in one place for its supervisor, at the other end of a socket.
A worker is to be the supervisor's child. So the template forks a process which forks the
workers of a round and ends: the supervisor adopts them, as it does every orphan below it.
"""

from __future__ import annotations

import array
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

from . import late_imports, linux, preloading, traces
from .differences.environment import read_too_early, too_late
from .differences.import_tree import ImportTree
from .differences.late_settings import LateSettings
from .differences.sources import LOOK_S, LOOKS_MAX
from .preloading import Preloading, Unfit
from .process_groups import keep_first_group
from .worker import Seat, become

PACKET_BYTES_MAX = 1024 * 1024
_FDS_MAX = 16  # that come with one packet
TRIAL_S = 10.0  # that a fork may take which only looks at itself
_NEVER = 2**31 - 1  # so many objects are not made between two looks for garbage
_THREADS_VARIABLE = "OMP_NUM_THREADS"
NAME = "worker template"  # as `ps` and `top` show it; 15 bytes at most


class Template:
    """What a template knows of itself, once it has imported everything."""

    def __init__(self, order: dict[str, Any], connection: socket.socket) -> None:
        self._order = order
        self._pid = os.getpid()
        self._connection = connection
        self._own = {"0", "1", "2", str(connection.fileno())}
        self._memory = linux.map_shared(order["memory"], late_imports.MEMORY_BYTES)
        self.environment = dict(os.environ)  # that every worker has, before imports changed it
        self._folder, self._name = os.getcwd(), linux.process_name()  # noqa: PTH109
        self._tree = ImportTree(order["left_out"])
        self._preloading = Preloading(self._own, order["own"], self._tree)
        self._late_settings: LateSettings | None = None
        self._has_told_delay = False
        self._files: list[int] = []

    def prepare(self) -> None:
        """Import everything; raises `Unfit`, or ends if another process is to leave out some."""
        linux.name_process(NAME)
        began, known = time.perf_counter(), len(sys.modules)
        places = self._order["path"]
        sys.path[:0] = places
        # Imports make hardly any garbage, and looking for it takes a quarter of them. It is not
        # turned off: a module may do so, for its workers.
        first, *rest = gc.get_threshold()
        gc.set_threshold(_NEVER, *rest)
        with self._preloading as watched:
            names = [name for name in self._order["modules"] if not self._tree.is_left_out(name)]
            script = self._order["script"]
            script = "" if self._tree.is_left_out(script) else script
            watched.load(names, script, self._order["instead"])
            if gc.get_threshold()[0] == _NEVER:
                gc.set_threshold(first, *gc.get_threshold()[1:])
            if why := _try_fork():
                raise Unfit(why)
            watched.check()
        if self._tree.has_grown:
            watched.values.remove_temporary()
            self.tell(self._leaving_out())
            os._exit(0)
        watched.random.keep_seeded()
        notes = watched.values.find(self.environment)
        seen = (self.environment, dict(os.environ))
        self._late_settings = LateSettings(watched.readers(), seen)
        keep_first_group()
        for place in places:  # The program puts them there itself as it begins.
            if place in sys.path:
                sys.path.remove(place)
        os.chdir(self._folder)
        self._files = traces.regular_files(self._own)
        # What is never collected is never written to, and stays shared.
        gc.collect()
        gc.freeze()
        seconds, count = time.perf_counter() - began, len(sys.modules) - known
        self.tell({"type": "ready", "seconds": seconds, "modules": count, "notes": notes})

    def _leaving_out(self) -> dict[str, Any]:
        """Return what a template is to leave out that takes the place of this one."""
        tree, why = self._tree, self._tree.reasons
        roots = tree.roots()
        wanted = [*self._order["modules"], *filter(None, [self._order["script"]])]
        useful = [name for name in wanted if not tree.is_left_out(name)]
        useful += [name for name in roots if name.partition(".")[0] not in sys.stdlib_module_names]
        if not useful:
            return {"type": "unfit", "why": why}
        return {"type": "left_out", "modules": tree.left_out, "instead": roots, "why": why}

    def tell(self, news: dict[str, Any]) -> None:
        """Send a message to the supervisor; if it is gone, so is this process soon."""
        if os.getpid() != self._pid:
            os._exit(1)  # a process that an import has forked, and let go on as this one
        self._connection.sendall(json.dumps(news).encode())

    def serve(self) -> None:
        """Do what the supervisor asks for; returns in a worker only."""
        linux.gather_pages(self._is_asked)
        while True:
            request, _ = self._receive()
            if "workers" not in request:
                path = self._preloading.sources.changed(self._is_asked)
                self.tell({"type": "checked", "path": path})
                # Between two rounds: pages that workers share now would not be shared any more.
                linux.gather_pages(self._is_asked)
                continue
            seats, are_complete = [], True
            for _ in range(request["workers"]):
                fields, fds = self._receive()
                are_complete &= len(fds) == len(fields["to"])  # else there is no room for more
                seats.append(Seat(fields["env"], fields["cpus"], dict(zip(fields["to"], fds))))  # noqa: B905
            answer = self._refusal(seats) if are_complete else {"errno": errno.EMFILE}
            if answer is None:
                answer = self._fork(seats, request["supervisor"])
                if answer is None:
                    return
            for seat in seats:
                seat.close()
            self.tell(answer)
            self._tell_delay()

    def _tell_delay(self) -> None:
        """Say once that the files are not all looked at before a start."""
        sources = self._preloading.sources
        if sources.is_behind and not self._has_told_delay:
            self._has_told_delay = True
            text = (
                f"looking at all {len(sources)} preloaded files takes longer than {LOOK_S:g} s, so "
                f"a change may be noticed up to {LOOKS_MAX} starts late: use --preload-refresh"
            )
            self.tell({"type": "note", "text": text})

    def _is_asked(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0])

    def _refusal(self, seats: list[Seat]) -> dict[str, Any] | None:
        """Return why these workers must not be forked from here, None if they may."""
        until = time.monotonic() + LOOK_S
        if path := self._preloading.sources.changed(lambda: time.monotonic() > until):
            return {"refused": {"type": "checked", "path": path}}
        reads = self._preloading.reads
        for seat in seats:
            names = read_too_early(reads, self.environment, seat.env)
            if names and all([self._preloading.leave_out_readers(name) for name in names]):  # noqa: C419 - all of them
                return {"refused": self._leaving_out()}
            why = too_late(reads, self.environment, seat.env)
            if why or (why := self._cpus_counted(seat)):
                return {"refused": {"type": "unfit", "why": why}}
        return None

    def _cpus_counted(self, seat: Seat) -> str:
        """Return why a worker would have too many threads for its CPUs; "" if it won't."""
        is_told = _THREADS_VARIABLE in self.environment | seat.env
        if is_told or not seat.cpus or os.sched_getaffinity(0) <= {*seat.cpus}:
            return ""
        if library := traces.thread_pool():
            return (
                f"{library} has counted the CPUs of this machine, and workers are bound to some: "
                f"set {_THREADS_VARIABLE}"
            )
        return ""

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        space = socket.CMSG_SPACE(_FDS_MAX * array.array("i").itemsize)
        data, ancillary, *_ = self._connection.recvmsg(PACKET_BYTES_MAX, space)
        if not data:
            os._exit(0)
        fds = array.array("i")
        for _, _, content in ancillary:
            fds.frombytes(content)
        return json.loads(data), list(fds)

    def _fork(self, seats: list[Seat], supervisor_pid: int) -> dict[str, Any] | None:
        """Fork the workers; return what became of it, None in a worker."""
        late_imports.empty(self._memory)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or no stream of Python's
                stream.flush()
        linux.flush_output_of_libraries()
        fds: tuple[int, ...] = ()
        try:
            reading, writing = fds = os.pipe()
            parent = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            return {"errno": error.errno}
        if parent == 0:
            try:
                os.close(reading)
                parent = os.getpid()
                place = _fork_all(len(seats), writing)
                os.setsid()
                os.close(writing)
                self._take_seat(seats, place)
                linux.await_other_parent(parent)
                linux.die_with(supervisor_pid)
            except KeyboardInterrupt:  # A stop that comes before its program does.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            except BaseException:  # noqa: BLE001 - it must not go on as if it were a worker
                traceback.print_exc()
                os._exit(1)
            return None
        os.close(writing)
        # It ends when the last worker leads its own session, and so gets what is for its group.
        with open(reading, "rb") as file:  # noqa: PTH123 - a descriptor
            content = file.read()
        # Only then is the supervisor their parent.
        _wait_for(parent)
        answer: dict[str, Any] = json.loads(content) if content else {"broken": True}
        return answer

    def _take_seat(self, seats: list[Seat], place: int) -> None:
        """Make this process, a fork of a fork, the worker at this place."""
        self._connection.close()
        linux.name_process(self._name)
        become(seats[place], self.environment, self._files, self._preloading)
        for seat in seats:
            seat.close()
        tell = None
        if place == 0:  # The others import and set what it does.
            late_imports.note(self._memory)
            tell = partial(late_imports.note_setting, self._memory)
        assert self._late_settings is not None, "nothing was preloaded"
        self._late_settings.watch(tell)


def _fork_all(count: int, tell: int) -> int:
    """Fork so many workers, tell their numbers and end; return in each which one it is."""
    answer: dict[str, Any] = {"pids": []}
    try:
        for place in range(count):
            pid = os.fork()
            if pid == 0:
                return place
            answer["pids"].append(pid)
    except OSError as error:
        for pid in answer["pids"]:  # They wait for the end of this process before they begin.
            os.kill(pid, signal.SIGKILL)
        answer = {"errno": error.errno}
    os.write(tell, json.dumps(answer).encode())
    os._exit(0)


def _wait_for(pid: int) -> None:
    """Return when a child of this process has ended."""
    with suppress(ChildProcessError):  # A handler of SIGCHLD has waited for it.
        os.waitpid(pid, 0)


def serve(order: str) -> None:
    """Be the template that this order, of the supervisor, describes; returns in a worker."""
    fields = json.loads(order)
    # Workers find none of ours; what runs here does not need to be found.
    for name in [name for name in sys.modules if name.split(".")[0] == __package__]:
        del sys.modules[name]
    folder = os.path.dirname(__file__)  # noqa: PTH120
    for place in (folder, f"{folder}/differences"):
        sys.path_importer_cache.pop(place, None)
    connection = socket.socket(fileno=fields["fd"])
    connection.set_inheritable(False)
    template = Template(fields, connection)
    try:
        template.prepare()
    except BaseException as error:  # noqa: BLE001 - an import may have changed what is used here
        what = preloading.describe(error)
        why = str(error) if isinstance(error, Unfit) else f"preloading has broken Python: {what}"
        template.tell({"type": "unfit", "why": why})
        os._exit(0)
    template.serve()


def _try_fork() -> str:
    """Fork once, as libraries may have a word in it; return why that went wrong, or ""."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, (traces.lost_accelerator() or "-").encode())
        os._exit(0)
    os.close(writing)
    heard = select.poll()
    heard.register(reading, select.POLLIN)
    answer = ""
    if heard.poll(TRIAL_S * 1000):
        answer = os.read(reading, select.PIPE_BUF).decode()
    os.close(reading)
    with suppress(ProcessLookupError):  # Where SIGCHLD is ignored it has gone for good by now.
        os.kill(pid, signal.SIGKILL)
    _wait_for(pid)
    if answer == "-":
        return ""
    if answer:
        return f"preloading {answer}, which a fork can't use any more"
    return "a fork of a process that has imported all this does not work"
