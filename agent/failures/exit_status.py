"""Pure. How a process ended, and the likely reason, as text."""

from signal import Signals

from msgspec import Struct

from drumbeat.agent.host.memory.growth import LastMemory, MemoryGroup
from drumbeat.text.format import count, format_size
from worker_sdk.interpreter.signal_numbers import INTERRUPTING

EXPLANATION_CHARACTERS_MAX = 2000
_KERNEL_CHARACTERS_MAX = 300
FULL_BYTES, FULL_INODES = 64 * 1024, 8  # with fewer of them free a file system counts as full
_MIB = 1024 * 1024
_DOCKER_SHARED_MEMORY_BYTES = 64 * _MIB

_RECORD_HINT = (
    "its standard error may say more; with @record of worker_sdk on the program's entry point "
    "its exception would stand here (docs/errors.md)"
)
_STACKS_HINT = (
    "to see the Python stacks next time, put @record of worker_sdk on the program's entry point "
    "or set PYTHONFAULTHANDLER=1"
)
_OOM_KILLER = "the kernel's out-of-memory killer"

_NAMES = {int(number): number.name for number in Signals}


def signal_within(exit_code: int) -> Signals | None:
    """Return the signal that an exit code stands for, also as a shell in between reports it."""
    number = -exit_code if exit_code < 0 else exit_code - 128  # which shells add
    return Signals(number) if number in _NAMES else None


def signal_name(exit_code: int) -> str:
    """Return the name of the signal behind a negative exit code, empty for an exit."""
    if exit_code >= 0:
        return ""
    whose = " of drumbeat" if -exit_code in INTERRUPTING else ""
    return _NAMES.get(-exit_code, f"signal {-exit_code}{whose}")


def describe_exit(exit_code: int) -> str:
    """Name the signal, or the code."""
    return signal_name(exit_code) or f"exit code {exit_code}"


def describe_ending(exit_code: int) -> str:
    """Say it as the end of a sentence: was ended by a signal, or exited with a code."""
    signal = signal_within(exit_code)
    name = signal.name if signal is not None else signal_name(exit_code)
    return f"was ended by {name}" if name else f"exited with code {exit_code}"


class KernelLine(Struct, frozen=True):
    """A line of the kernel log about process ``pid``, as the host numbers processes."""

    pid: int
    text: str
    is_oom_kill: bool


class ExitEvidence(Struct, frozen=True, kw_only=True):
    """How a worker ended, and what the host showed right after; none of it is certain.

    ``is_stopped``: by its agent. ``has_error``, ``has_stacks``: it left an error file, its crash
    left stacks. ``host_oom_kills`` and ``kernel_lines`` are of the whole host since the round
    began, ``shared_memory`` the bytes of /dev/shm and those that are free; ``None``: unknown.
    """

    exit_code: int
    pid: int = 0
    is_stopped: bool = False
    has_error: bool = False
    has_stacks: bool = False
    memory: MemoryGroup | None = None
    host_oom_kills: int | None = None
    kernel_lines: tuple[KernelLine, ...] | None = None
    shared_memory: tuple[int, int] | None = None
    missing_script: str = ""
    last_memory: LastMemory | None = None


class Space(Struct, frozen=True):
    """What is left of the file system of a directory; ``inodes`` is None where none are counted."""

    directory: str
    free_bytes: int
    inodes: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether a program that writes there soon fails, if it has not."""
        has_no_inodes = self.inodes is not None and self.inodes < FULL_INODES
        return self.free_bytes < FULL_BYTES or has_no_inodes


def describe_full(space: Space) -> str:
    """Say that a file system is full, and of what."""
    inodes = "" if space.inodes is None else f" and {count(space.inodes, 'inode')}"
    left = f"{count(space.free_bytes, 'byte')}{inodes} free"
    return f"the file system of the log directory {space.directory} is full: {left}"


# Signals that a process brings upon itself, and what with.
_CRASHES = {
    Signals.SIGSEGV: "native code accessed invalid memory",
    Signals.SIGABRT: "native code aborted: a failed assertion, an uncaught C++ exception, "
    "or a watchdog such as NCCL's that ended its process",
    Signals.SIGFPE: "native code made an arithmetic error, such as an integer division by zero",
    Signals.SIGILL: "native code used an instruction that this CPU lacks: it may be built for "
    "another CPU",
    Signals.SIGTRAP: "native code reached a breakpoint, or one of its own checks failed",
    Signals.SIGSYS: "it made a system call that its container forbids (seccomp)",
}

_BATCH_WARNING = (
    "it got {}, e.g. a batch system's warning before the time limit, and had no handler for it"
)
_REASONS = {
    Signals.SIGPIPE: "it wrote to a pipe or socket whose reader is gone",
    Signals.SIGXCPU: "it reached its limit of CPU time (`ulimit -t`, RLIMIT_CPU)",
    Signals.SIGXFSZ: "a file reached the limit of file sizes (`ulimit -f`, RLIMIT_FSIZE)",
    Signals.SIGALRM: "a timer that the program set expired, and the program had no handler for it",
    Signals.SIGUSR1: _BATCH_WARNING.format("SIGUSR1"),
    Signals.SIGUSR2: _BATCH_WARNING.format("SIGUSR2"),
}

_EXITS = {
    1: "the program ended with an error and recorded none",
    2: "exit code 2 usually means a wrong command line",
    255: "exit code 255 means exit(-1), or that ssh failed",
}

_SHELLS = {
    126: "a shell found a command but could not run it: is it executable?",
    127: "a shell did not find a command: check its name and the PATH on this host",
}


def explain(evidence: ExitEvidence) -> str:
    """Return why the worker likely ended as it did; empty if it ended well."""
    code, signal = evidence.exit_code, signal_within(evidence.exit_code)
    if code == 0:
        return ""
    if evidence.is_stopped:
        why = "its agent was stopping it"
        if signal is Signals.SIGKILL:
            why += " and killed it: it did not end within --shutdown-timeout, "
            why += "or the agent had to end at once"
    elif signal is not None:
        why = _signalled(signal, evidence)
        if code > 0:
            sender = f"exit code {code} is how a shell or launcher reports {signal.name}"
            why = f"{sender}: {why}"
    elif -code in INTERRUPTING:
        why = (
            f"drumbeat ended it: by signal {-code} its SDK interrupts a worker for a restart in "
            "process, and the program has removed the handler that the SDK had set"
        )
    elif code < 0:
        why = f"signal {-code} has no name here: something else sent it"
    else:
        why = _exited(code, evidence)
    return why[:EXPLANATION_CHARACTERS_MAX]


def out_of_memory(evidence: ExitEvidence) -> str:
    """Say in one line that the kernel ended the worker for want of memory; empty if it did not."""
    if evidence.is_stopped or signal_within(evidence.exit_code) is not Signals.SIGKILL:
        return ""
    lines = evidence.kernel_lines or ()
    is_certain = any(line.is_oom_kill and line.pid == evidence.pid for line in lines)
    if not is_certain and not (evidence.memory and evidence.memory.oom_kills):
        return ""
    last = evidence.last_memory
    size = f", with {format_size(last.resident_bytes)} of memory" if last else ""
    return f"{'' if is_certain else 'very likely '}ended by {_OOM_KILLER}{size}"


def _signalled(signal: Signals, evidence: ExitEvidence) -> str:
    if signal is Signals.SIGKILL:
        return "; ".join(filter(None, (_killed(evidence), _last_memory(evidence.last_memory))))
    if signal is Signals.SIGBUS or signal in _CRASHES:
        why = [_CRASHES[signal]] if signal in _CRASHES else _bus_error(evidence.shared_memory)
        lines = [line for line in evidence.kernel_lines or () if not line.is_oom_kill]
        said = [f"the kernel says: {_quoted(line)}" for line in lines if line.pid == evidence.pid]
        where = "the Python stacks of that moment are in the traceback"
        return "; ".join([*why, *said[-1:], where if evidence.has_stacks else _STACKS_HINT])
    return _REASONS.get(signal) or (
        f"something else sent {signal.name}; it was not this agent. Often a batch system, "
        "a container runtime or a person"
    )


def _killed(evidence: ExitEvidence) -> str:
    memory, lines = evidence.memory or MemoryGroup(name=""), evidence.kernel_lines
    kills = [line for line in lines or () if line.is_oom_kill]
    for line in kills:
        if line.pid == evidence.pid:
            return f"{_OOM_KILLER} killed it: {_quoted(line)}"
    since = "since the round began"
    limit = f" with its limit of {format_size(memory.limit_bytes)}" if memory.limit_bytes else ""
    group = f"cgroup {memory.name}{limit}"
    if number := memory.oom_kills or max(evidence.host_oom_kills or 0, len(kills)):
        likely, where = ("very likely", group) if memory.oom_kills else ("perhaps", "this host")
        ended = "1 process" if number == 1 else f"{number} processes"
        # Within a container the log has other numbers than we have, so any of them may be it.
        logged = f"; the kernel says: {_quoted(kills[-1])}" if kills else ""
        return f"{likely} {_OOM_KILLER}: it killed {ended} of {where} {since}{logged}"
    if memory.limit_hits and memory.oom_kills is None:
        hits = f"hit its memory limit {memory.limit_hits} times"
        return f"perhaps {_OOM_KILLER}: {group} {hits} {since}"
    if memory.oom_kills is None and evidence.host_oom_kills is None and lines is None:
        return (
            f"SIGKILL came from {_OOM_KILLER} or from another sender; the agent may not see "
            "which on this host: check the kernel log with `dmesg`"
        )
    return (
        f"no sign of {_OOM_KILLER}: something else sent it, "
        "e.g. a batch system, a container runtime or a person"
    )


def _last_memory(last: LastMemory | None) -> str:
    if last is None:
        return ""
    where = "its cgroup" if last.is_cgroup else "its host"
    limit = f" of {format_size(last.limit_bytes)}" if last.limit_bytes else ""
    of_all = f", and {where} {format_size(last.used_bytes)}{limit}" if last.used_bytes else ""
    return f"{last.ago_s:.1f} s before, its process used {format_size(last.resident_bytes)}{of_all}"


def _bus_error(shared_memory: tuple[int, int] | None) -> list[str]:
    text = "it used mapped memory that the host could not provide, usually because /dev/shm is full"
    advice = "in a container, raise it with --shm-size"
    if shared_memory is not None:
        size, free = shared_memory
        text += f" ({format_size(size)}, of which {format_size(free)} are free now)"
        if size <= _DOCKER_SHARED_MEMORY_BYTES:
            advice = "that is small: raise it with --shm-size of the container, e.g. --shm-size=16g"
    return [text, advice]


def _exited(code: int, evidence: ExitEvidence) -> str:
    if code == 2 and evidence.missing_script:
        return (
            f"Python could not open {evidence.missing_script}: no such file on this host; check "
            "that the script exists at this path on every host"
        )
    if evidence.has_error:
        return "the program raised an exception, see message"
    if code in _SHELLS:
        return _SHELLS[code]
    return f"{_EXITS.get(code, f'the program chose exit code {code} itself')}; {_RECORD_HINT}"


def _quoted(line: KernelLine) -> str:
    return f"{line.text[:_KERNEL_CHARACTERS_MAX]!r}"
