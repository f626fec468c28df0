"""Shell. The supervisor's side of a template process: start, requests, answers, end."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec
import psutil

from drumbeat.agent.model.messages import StartWorkers, WorkerStart
from drumbeat.agent.workers.supervisor.process_tree import kill_descendants
from drumbeat.agent.workers.supervisor.spawner import PATH_VARIABLE, STARTUP, with_first
from drumbeat.agent.workers.supervisor.template_keeper import Event, LateImports, Launch, News
from drumbeat.agent.workers.template import late_imports

ORDER_VARIABLE = "DRUMBEAT_TEMPLATE"  # as `sitecustomize` of the startup folder has it
# How long the workers of a round may take: each takes some milliseconds, more on a busy machine.
FORK_WAIT_S, FORK_WAIT_EACH_S = 2.0, 0.1
_PACKET_BYTES_MAX = 1024 * 1024


class Refused(Exception):
    """The template did not fork the workers of a round; ``event`` says why, if that lasts."""

    def __init__(self, event: Event | None) -> None:
        super().__init__(str(event))
        self.event = event


class Broken(Exception):
    """The template does not answer as it should, and some workers may have been forked."""


class TemplateProcess:
    """One template, from its start to its end."""

    def __init__(self, launch: Launch, spawn: Callable[[StartWorkers, WorkerStart], int]) -> None:
        """Start it. Raises ``OSError``."""
        self._preload = launch.preload
        self.is_closed = False  # whether there is nothing more to read
        with ExitStack() as undo:
            self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self.connection.close)
            memory = os.memfd_create("late imports", os.MFD_CLOEXEC)
            with theirs:
                undo.callback(os.close, memory)
                os.ftruncate(memory, late_imports.MEMORY_BYTES)
                self._memory = mmap.mmap(memory, late_imports.MEMORY_BYTES)
                fds = (theirs.fileno(), memory)
                start = _start_of(launch, *fds)
                worker = WorkerStart(local_rank=0, env={}, fds=fds)
                self.pid = spawn(start, worker)
            undo.pop_all()
        os.close(memory)
        self.connection.setblocking(False)

    def read(self) -> list[Event]:
        """Return what it has said, without waiting."""
        events: list[Event] = []
        try:
            while data := self.connection.recv(_PACKET_BYTES_MAX):
                with suppress(msgspec.DecodeError, UnicodeDecodeError):  # of what it has imported
                    events.append(msgspec.json.decode(data, type=News))
            self.is_closed = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.is_closed = True  # It died with something unread.
        return events

    def check_sources(self) -> None:
        """Have it say whether a file has changed."""
        with suppress(OSError):  # it has ended, which is reported
            self._send({"check": True})

    def late_imports(self) -> LateImports:
        """Return what the first worker of the latest round imported and set so far by itself."""
        modules, settings = late_imports.read(self._memory)
        return LateImports(modules=tuple(modules), settings=tuple(settings))

    def fork(self, command: StartWorkers, opened: Callable[[WorkerStart], Any]) -> dict[int, int]:
        """Have it fork the workers of a round; return pids by local rank.

        Raises `Refused` if it does not, and `Broken` if it can't or that is unknown.
        """
        if (command.argv, command.env) != (self._preload.argv, self._preload.env):
            raise Refused(None)
        ranks = [worker.local_rank for worker in command.workers]
        wait_s = FORK_WAIT_S + FORK_WAIT_EACH_S * len(ranks)
        with self._exchange(wait_s), ExitStack() as files:
            packets: list[tuple[dict[str, Any], list[int]]] = []
            for worker in command.workers:
                if worker.fds or worker.args:
                    raise Refused(None)
                try:
                    outputs = files.enter_context(opened(worker))
                except OSError:
                    raise Refused(None) from None  # said better where it is tried again
                seat = {"env": dict(worker.env), "cpus": worker.cpus, "to": list(outputs)}
                packets.append((seat, list(outputs.values())))
            self._send({"workers": len(packets), "supervisor": os.getpid()})
            for seat, fds in packets:
                self._send(seat, fds)
            answer = self._answer()
        match answer:
            case {"pids": list(pids)}:
                return dict(zip(ranks, pids, strict=True))
            case {"errno": int(number)}:
                raise Broken(f"could not fork workers: {os.strerror(number)}")
            case {"refused": why}:
                raise Refused(msgspec.convert(why, News))
        raise Broken("did not fork workers")

    @contextmanager
    def _exchange(self, wait_s: float) -> Iterator[None]:
        self.connection.settimeout(wait_s)
        try:
            yield
        except TimeoutError:
            raise Broken(f"did not fork workers within {wait_s:g} s") from None
        except (ConnectionError, ValueError) as error:
            raise Broken("ended while it was to fork workers") from error
        except OSError as error:
            raise Broken(f"could not be asked for workers: {error.strerror}") from error
        finally:
            self.connection.setblocking(False)

    def _answer(self) -> dict[str, Any]:
        while data := self.connection.recv(_PACKET_BYTES_MAX):
            answer: dict[str, Any] = json.loads(data)
            if answer.get("type") not in ("checked", "note"):  # it says them again, or has said
                return answer
        raise ConnectionResetError

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        packet = json.dumps(message).encode()
        if fds:
            socket.send_fds(self.connection, [packet], fds)
        else:
            self.connection.sendall(packet)

    def end(self) -> None:
        """Kill it, and what its imports have started; the caller reaps."""
        self.connection.close()
        self._memory.close()
        with suppress(psutil.NoSuchProcess):
            kill_descendants(self.pid)
        self.kill()

    def kill(self) -> None:
        """Kill it alone; the caller reaps."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)


def _start_of(launch: Launch, connection: int, memory: int) -> StartWorkers:
    """Return how Python is started with the workers' program, to stop before it."""
    preload = launch.preload
    order = {
        "fd": connection,
        "memory": memory,
        "modules": preload.modules,
        "script": preload.script,
        "path": preload.path,
        "own": preload.own,
        "left_out": launch.left_out.modules,
        "instead": launch.left_out.instead,
    }
    env = {
        **preload.env,
        PATH_VARIABLE: with_first(STARTUP, preload.env.get(PATH_VARIABLE)),
        ORDER_VARIABLE: json.dumps(order),
    }
    worker = WorkerStart(local_rank=0, env={})
    return StartWorkers(
        round_id=0, argv=preload.argv, env=env, workers=(worker,), ignored=preload.ignored
    )
