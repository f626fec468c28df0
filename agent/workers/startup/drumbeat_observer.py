"""Shell. Answers the agent from a thread of the worker: stacks, and calls of process groups.

It runs in the user's process, so it is a guest there: it loads nothing that Python has not loaded
by itself, appears in no list of threads, gets no signals, and sleeps until the agent asks. Any
Python from 3.8 on can load this file by itself.

The agent asks with lines ``NUMBER stacks``, ``NUMBER calls`` or ``NUMBER progress``, and gets
``NUMBER BYTES`` in a line and then so many bytes, none if there is nothing to say.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOCKET = "DRUMBEAT_OBSERVER"  # where the agent listens; not there: it does not observe
TOKEN = "DRUMBEAT_WORKER_TOKEN"  # noqa: S105 - a name
STACKS_BYTES_MAX = 1024 * 1024
_TORCH = "torch._C._distributed_c10d"
_GROUPS = "torch.distributed.distributed_c10d"


def start() -> None:
    """Connect to the agent and begin to answer it. Raises ``OSError`` if that is not possible."""
    path, token = os.environ.get(SOCKET), os.environ.get(TOKEN)
    if not path or not token:
        return
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    connection.setblocking(False)  # an agent that does not listen must not delay a start
    connection.connect(path)
    connection.setblocking(True)
    fd = connection.detach()
    os.write(fd, f"{token}\n".encode())
    # Signals for the process are for the program's own threads.
    before = _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
    try:
        _thread.start_new_thread(_answer_all, (fd,))
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    place = os.fstat(fd)

    def close_in_child() -> None:
        try:
            if os.path.samestat(os.fstat(fd), place):
                os.close(fd)
        except OSError:  # the program has closed all it did not know
            pass

    os.register_at_fork(after_in_child=close_in_child)


def _answer_all(fd: int) -> None:
    """Answer until the agent has gone."""
    asked = b""
    try:
        while True:
            data = os.read(fd, 4096)
            if not data:
                break
            *lines, asked = (asked + data).split(b"\n")
            for line in lines:
                number, _, what = line.partition(b" ")
                answer = _answer(what)
                left = memoryview(b"%s %d\n%s" % (number, len(answer), answer))
                while left:
                    left = left[os.write(fd, left) :]
        os.close(fd)
    except OSError:  # the agent has gone, or the program has closed all it did not know
        pass


def _answer(what: bytes) -> bytes:
    try:
        if what == b"stacks":
            return _stacks()
        if what == b"calls":
            return _calls()
        return _recorded(False)
    except Exception:  # noqa: BLE001 - another version of torch, or an interpreter that ends
        return b""


def _stacks() -> bytes:
    """Return the stacks of all other threads as Python's fault handler writes them.

    It reads them in C while no other Python code runs; frames that are walked in Python while
    their thread leaves them have crashed CPython 3.11 (python/cpython#111363).
    """
    import faulthandler  # noqa: PLC0415 - a part of the interpreter, loaded when it is needed

    file = os.memfd_create("stacks")
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        blocks = os.pread(file, STACKS_BYTES_MAX, 0).split(b"\n\n")
    finally:
        os.close(file)
    return b"\n\n".join(block for block in blocks if not block.startswith(b"Current thread"))


def _recorded(with_calls: bool) -> bytes:
    """Return what torch's flight recorder has, as JSON; nothing if there is none."""
    dump = getattr(sys.modules.get(_TORCH), "_dump_fr_trace_json", None)
    if dump is None or _GROUPS not in sys.modules:
        return b""
    recorded: bytes = dump(with_calls)
    return recorded


def _calls() -> bytes:
    """Return the process groups with their ranks, and the recorded calls, as JSON."""
    recorded = _recorded(True)
    if not recorded:
        return b""
    import json  # noqa: PLC0415 - torch has loaded it

    groups = json.dumps(_groups(sys.modules[_GROUPS])).encode()
    return b'{"groups": %s, "recorded": %s}' % (groups, recorded)


def _groups(torch: "Any") -> "list[tuple[str, str, str]]":
    """Return the name, description and ranks of each group this process belongs to."""
    world = torch._world  # noqa: SLF001 - nothing public has the names
    groups = []
    for group, name in list(world.pg_names.items()):
        ranks = world.pg_group_ranks.get(group)
        if ranks:
            groups.append((name, getattr(group, "group_desc", ""), _ranges(sorted(ranks))))
    return groups


def _ranges(ranks: "list[int]") -> str:
    """Return ranks in short, as ranges with strides: "0-3,8-14:2"."""
    parts, at = [], 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - at < 3 and step != 1:  # two ranks apart are no range
            end = at + 1
        first, last = ranks[at], ranks[end - 1]
        range_ = str(first) if first == last else f"{first}-{last}"
        parts.append(range_ if step == 1 or first == last else f"{range_}:{step}")
        at = end
    return ",".join(parts)
