"""Pure. The values that settings of an agent take beside durations."""

import re
import shlex
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any, NamedTuple

from drumbeat.agent.settings.placement import PLACES_MAX
from drumbeat.command.settings import PORT, Kind, number, one_of, printable, seconds, text
from drumbeat.restart_rules import ALLOWED, RULES_MAX, parse_rule
from drumbeat.text.addresses import HostPort, parse_host_port
from drumbeat.text.format import one_line

AGENTS_MAX = 1_000_000  # the coordinator has a lower limit of its own
GROUPS_MAX = 1_000  # as many runs as a coordinator holds
WORKERS_PER_HOST_MAX = 4096  # more than any host has cores; more is a slip of the keyboard
LABELS_MAX = 64  # what an agent says of itself stays small

# Signals that end an agent unless it is told otherwise are torchrun's; the others are those that
# can be handled at all, and that mean nothing else to an agent.
SIGNALS_HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_OTHER_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPWR", "SIGXCPU", "SIGXFSZ")
SIGNALS_ALLOWED = SIGNALS_HANDLED + _OTHER_SIGNALS

STRAGGLER_RULE = (1.5, 20)  # factor and steps, if none are given
# Two ranks always differ by a little; and what takes a hundred times as long hangs.
STRAGGLER_FACTOR_MIN, STRAGGLER_FACTOR_MAX, STRAGGLER_STEPS_MAX = 1.01, 100.0, 1_000_000
_STRAGGLER_RULE_FORM = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)(?:,([0-9]{1,7}))?", re.ASCII)

PATTERNS_MAX, PATTERN_CHARACTERS_MAX = 16, 256  # of one option

# A round never has the port of one of the 64 before it, and other jobs may use the same range.
RANGE_PORTS_MIN = 100
PORT_MAX = 65535
_PORT_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})", re.ASCII)
HEALTH_CHECKS = ("gpu", "nic", "disk", "memory", "clock")
COMMAND_CHARACTERS_MAX = 4096
_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9]{1,6})(MB|GB|TB)", re.ASCII)

NOWHERE = "0"  # of redirects and tee: no stream of any worker

# It names a directory, where dots alone mean another one. Empty: made up.
RUN_ID_CHARACTERS_MAX = 128
_RUN_ID_FORM = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{0,128}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,63}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9._/-]{1,63}=[A-Za-z0-9._:/-]{0,63}", re.ASCII)
_NNODES = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?", re.ASCII)
_GROUP = re.compile(r"([0-9]{1,4})/([0-9]{1,4})", re.ASCII)
_RANKS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*", re.ASCII)


class NumaMode(StrEnum):
    """How near its GPU a worker runs, and how alone; see ``agent/workers/devices/binding.py``."""

    NODE = "node"  # all CPUs of the GPU's NUMA node
    SOCKET = "socket"  # all CPUs of the GPU's socket, its other NUMA nodes included
    EXCLUSIVE = "exclusive"  # this worker's share of the physical cores of the GPU's node
    CORE_COMPLEX = "core-complex"  # cores of the node that share their last-level cache


class OutputPattern(NamedTuple):
    """A regular expression that is looked for in the output of workers."""

    regex: str
    within_s: float | None = None  # how often at least; None: it is fatal


def check_regex(regex: str) -> None:
    """Raise ``ValueError`` if this is no regular expression; it says where the mistake is."""
    if not 1 <= len(regex) <= PATTERN_CHARACTERS_MAX or not regex.isprintable():
        most = PATTERN_CHARACTERS_MAX
        raise ValueError(f"a regular expression has 1 to {most} printable characters")
    try:
        re.compile(regex)
    except re.error as error:
        at = error.pos or 0
        where = f"at character {at + 1}, '{regex[at:]}'" if regex[at:] else "at its end"
        raise ValueError(f"no regular expression: {error.msg} {where}") from None
    except OverflowError as error:
        raise ValueError(f"no regular expression: {error}") from None


def hang_pattern(given: str) -> OutputPattern:
    """Read REGEX=DURATION. Raises ``ValueError``."""
    regex, equals, duration = given.rpartition("=")
    if not equals:
        raise ValueError("it has no =DURATION")
    within_s = seconds(0.1).parse(duration)
    check_regex(regex)
    return OutputPattern(regex, within_s)


def fatal_pattern(given: str) -> OutputPattern:
    """Read REGEX. Raises ``ValueError``."""
    check_regex(given)
    if re.search(given, "") is not None:
        raise ValueError("it matches an empty text, and so every line")
    return OutputPattern(given)


def check_rule(given: str) -> None:
    """Raise ``ValueError`` if this is no restart rule."""
    if regex := parse_rule(given).regex:
        check_regex(regex)


def health_path(given: str) -> tuple[str, int | None]:
    """Read PATH or PATH=SIZE: a directory, and how many bytes of it must be free."""
    path, equals, size = given.rpartition("=")
    if not equals or (match := _SIZE.fullmatch(size)) is None:
        path, match = given, None
    if not path or "\0" in path:
        raise ValueError("it names no directory")
    return path, int(match[1]) * _UNITS[match[2]] if match else None


def _check_command(given: str) -> None:
    if not 1 <= len(given) <= COMMAND_CHARACTERS_MAX or not given.isprintable():
        raise ValueError(f"a command has 1 to {COMMAND_CHARACTERS_MAX} printable characters")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"it can't be split into words: {error}") from None
    if not words:
        raise ValueError("it names no program")


def _are_health_checks(names: Sequence[str]) -> bool:
    return bool(names) and (list(names) == ["none"] or set(names) <= set(HEALTH_CHECKS))


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TypeError
    return tuple(value)


def _patterns(
    allowed: str, metavar: str, parse: Callable[[str], object], number_max: int = PATTERNS_MAX
) -> Kind:
    """Return the kind of several patterns or rules, each of which has an option of its own."""

    def convert(given: str) -> str:
        try:
            parse(given)
        except ValueError as error:
            shown = f"'{given}'" if given.isprintable() else ascii(given)
            raise ValueError(f"{one_line(shown, 300)}: {error}; allowed is {allowed}") from None
        return given

    def read(value: Any) -> tuple[str, ...]:
        if len(texts := _read_texts(value)) > number_max:
            raise ValueError
        return tuple(map(convert, texts))

    most = f"up to {number_max} of {allowed}"
    return Kind(most, read, convert, "\n".join, metavar, is_repeated=True)


def _parse_nnodes(given: str) -> tuple[int, int]:
    match = _NNODES.fullmatch(given.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= AGENTS_MAX:
        raise ValueError
    return low, high


_DEVICE_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")


def _parse_group(given: str) -> tuple[int, int]:
    if (match := _GROUP.fullmatch(given.strip())) is None:
        raise ValueError
    return _read_group(tuple(map(int, match.groups())))


def _read_group(value: Any) -> tuple[int, int]:
    index, count = value
    if type(index) is not int or type(count) is not int or not 0 <= index < count <= GROUPS_MAX:
        raise ValueError
    return index, count


def _parse_workers(given: str) -> int | str:
    word = given.strip().lower()
    return word if _DEVICE_TYPE.fullmatch(word) else int(_COUNT.convert(given))


def _parse_ranks(given: str) -> frozenset[int] | None:
    compact = given.replace(" ", "")
    if compact and _RANKS.fullmatch(compact) is None:
        raise ValueError
    return frozenset(map(int, compact.split(","))) if compact else None


def _read_ranks(value: Any) -> frozenset[int] | None:
    if not isinstance(value, (AbstractSet, list, tuple)) or any(type(r) is not int for r in value):
        raise TypeError
    return frozenset(value) or None  # as in torch, an empty filter means all


def _read_streams(value: Any) -> str:
    if isinstance(value, dict):
        value = ",".join(f"{rank}:{int(std)}" for rank, std in value.items()) or NOWHERE
    given = value if isinstance(value, str) else str(int(value))
    if given != NOWHERE:
        # Imported here: it costs as much as the rest of the command line, and few need it.
        from drumbeat.agent.settings.std import Std  # noqa: PLC0415

        Std.from_str(given)
    return given


def _read_logs_specs(value: Any) -> Any:
    if not isinstance(value, (str, bytes)) and not callable(getattr(value, "reify", None)):
        raise TypeError
    return value


def _texts(
    allowed: str,
    metavar: str,
    split: Callable[[str], Sequence[str]],
    are_allowed: Callable[[Sequence[str]], object] = lambda _: True,
) -> Kind:
    """Return the kind of several texts, which stand between commas on a command line."""

    def read(value: Any) -> tuple[str, ...]:
        if not are_allowed(texts := _read_texts(value)):
            raise ValueError
        return texts

    return Kind(allowed, read, lambda given: read(split(given)), ",".join, metavar)


def _split_filters(given: str) -> list[str]:
    """Split at commas; a double comma is one comma within a text."""
    # A zero byte can be part of no argument and no variable of the environment.
    parts = given.replace(",,", "\0").split(",")
    return [part.replace("\0", ",") for part in parts if part]


def _are_labels(labels: Sequence[str]) -> bool:
    is_each_once = len({label.partition("=")[0] for label in labels}) == len(labels) <= LABELS_MAX
    return is_each_once and all(map(_LABEL.fullmatch, labels))


def _split_order(given: str) -> list[str]:
    return [] if given.strip() == "none" else [part.strip() for part in given.split(",")]


def _is_order(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names) <= PLACES_MAX and all(map(_NAME.fullmatch, names))


def _are_modules(names: Sequence[str]) -> bool:
    return all(part.isidentifier() for name in names for part in name.split("."))


def _is_name(value: str) -> bool:
    return len(value) <= 253 and value.isprintable() and " " not in value  # as of a DNS name


def _listening(given: Any) -> str:
    """Return PORT or ADDR:PORT with its address."""
    address, _, port = str(given).strip().rpartition(":")
    number = PORT.convert(port)
    host = parse_host_port(f"{address}:{number or 1}").host if address else "127.0.0.1"
    return str(HostPort(host, number))


def parse_port_range(given: str) -> range | None:
    """Return the ports of FIRST-LAST, ``None`` for an empty text. Raises ``ValueError``."""
    if not given:
        return None
    if (match := _PORT_RANGE.fullmatch(given)) is None:
        raise ValueError
    first, last = map(int, match.groups())
    if not 1024 <= first <= last <= PORT_MAX or last - first + 1 < RANGE_PORTS_MIN:
        raise ValueError
    return range(first, last + 1)


def _read_straggler_rule(value: Any) -> tuple[float, int] | None:
    if value in (None, False):
        return None
    if value is True:
        return STRAGGLER_RULE
    factor, steps = value if isinstance(value, (list, tuple)) else (value, STRAGGLER_RULE[1])
    if isinstance(factor, bool) or not STRAGGLER_FACTOR_MIN <= factor <= STRAGGLER_FACTOR_MAX:
        raise ValueError
    if type(steps) is not int or not 1 <= steps <= STRAGGLER_STEPS_MAX:
        raise ValueError
    return float(factor), steps


def _parse_straggler_rule(given: str) -> tuple[float, int] | None:
    word = given.strip().lower()
    if word in ("on", "off"):
        return STRAGGLER_RULE if word == "on" else None
    if (match := _STRAGGLER_RULE_FORM.fullmatch(word)) is None:
        raise ValueError
    return _read_straggler_rule((float(match[1]), int(match[2] or STRAGGLER_RULE[1])))


_COUNT = number(1, WORKERS_PER_HOST_MAX)
WORKERS = _COUNT._replace(
    convert=_parse_workers,
    metavar="N|auto|gpu|cpu|DEVICE",
    allowed_text=f"a number from 1 to {WORKERS_PER_HOST_MAX}, auto, gpu, cpu or a torch device "
    "type such as xpu",
)
NODES = number(1, AGENTS_MAX)
NNODES = Kind(
    f"N or MIN:MAX with 1 <= MIN <= MAX <= {AGENTS_MAX}", str, _parse_nnodes, metavar="MIN[:MAX]"
)
_GROUP_ALLOWED = f"an index from 0 to COUNT - 1, and COUNT is at most {GROUPS_MAX}"
REPLICA_GROUP = Kind(
    f"(INDEX, COUNT): {_GROUP_ALLOWED}",
    _read_group,
    _parse_group,
    lambda group: f"{group[0]}/{group[1]}",
    metavar="INDEX/COUNT",
    allowed_text=f"INDEX/COUNT as in 0/4: {_GROUP_ALLOWED}",
)
GROUPS_MIN = number(1, GROUPS_MAX)
RESTARTS = number(0, 1_000_000)  # practically endless, and far from the protocol's own end
EXCLUDE_AFTER = number(0, 100)
NUMA = one_of([mode.value for mode in NumaMode])
RUN_ID = text(
    "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'; not '.' or '..'",
    _RUN_ID_FORM.fullmatch,
)
AGENT_NAME = text("up to 253 printable characters without spaces", _is_name)
HOST_OR_EMPTY = text("a host name or an IP address", _is_name, metavar="ADDR")
HOST = text(HOST_OR_EMPTY.allowed, lambda value: value and _is_name(value), metavar="ADDR")
PATH = text("a path", lambda value: value, metavar="PATH")
FILE = PATH._replace(metavar="FILE")
TEXT = text("a text", lambda _: True, metavar="TEXT")
PORT_RANGE = text(
    f"FIRST-LAST, at least {RANGE_PORTS_MIN} ports from 1024 to {PORT_MAX}",
    lambda given: not given or parse_port_range(given),
    metavar="FIRST-LAST",
)
STREAMS = Kind(
    "Std.OUT and the like, a map of these by local rank, or a text of 0 (none), 1 (stdout), "
    '2 (stderr), 3 (both), for each local rank as in "0:3,1:2"',
    _read_streams,
    _read_streams,
    metavar="STREAMS",
)
RANKS = Kind(
    "local ranks, or None",
    _read_ranks,
    _parse_ranks,
    metavar="RANK[,RANK]...",
    allowed_text="local ranks separated by commas: 0,2",
)
LOGS_SPECS = Kind(
    "logs specs, which have a method reify, the name of some, or None",
    _read_logs_specs,
    metavar="NAME",
)
FILTERS = _texts("a list of texts, or None", "TEXT[,TEXT]...", _split_filters)
HANG_PATTERNS = _patterns(
    r"REGEX=DURATION as in 'iteration \d+=10m', with a regular expression of Python",
    "REGEX=DURATION",
    hang_pattern,
)
FATAL_PATTERNS = _patterns(
    "a regular expression of Python as in 'NCCL error', which matches no empty text",
    "REGEX",
    fatal_pattern,
)
RESTART_RULES = _patterns(ALLOWED, "WHEN:ACTION", check_rule, RULES_MAX)
HEALTH_COMMANDS = _patterns("a command as in 'dcgmi diag -r 1'", "CMD", _check_command)
HEALTH_PATHS = _patterns(
    "a directory, or one with the space that must be free as in /checkpoints=50GB (MB, GB, TB)",
    "PATH[=SIZE]",
    health_path,
)
HEALTH_NAMES = _texts(
    f"names separated by commas, of {', '.join(HEALTH_CHECKS)}; or none",
    "NAME[,NAME]|none",
    lambda given: [*dict.fromkeys(name.strip().lower() for name in given.split(","))],
    _are_health_checks,
)
LABELS = _texts(
    f"up to {LABELS_MAX} of KEY=VALUE separated by commas, each KEY once, of up to 63 of "
    "A-Z a-z 0-9 . _ / -",
    "KEY=VALUE[,...]",
    lambda given: [part.strip() for part in given.split(",") if part.strip()],
    _are_labels,
)
RANK_ORDER = _texts(
    f"slurm, none, or up to {PLACES_MAX} names of labels separated by commas, each once",
    "LABEL[,LABEL]...|slurm|none",
    _split_order,
    _is_order,
)
LABEL_NAME = text("the name of a label", _NAME.fullmatch, metavar="LABEL")
BLOCK_SIZE = number(0, AGENTS_MAX)
COMMAND = printable(256)._replace(metavar="CMD")
MODULES = _texts(
    "names of Python modules separated by commas: torch,mypackage.models",
    "MODULE[,MODULE]...",
    lambda given: [*dict.fromkeys(part.strip() for part in given.split(",") if part.strip())],
    _are_modules,
)
METRICS_PORT = Kind(
    "PORT, ADDR:PORT or [IPV6]:PORT, with a port from 0 to 65535",
    _listening,
    _listening,
    metavar="[ADDR:]PORT",
)
_STRAGGLER_NUMBERS = (
    f"a factor from {STRAGGLER_FACTOR_MIN} to {STRAGGLER_FACTOR_MAX:g}, and a number of steps "
    f"from 1 to {STRAGGLER_STEPS_MAX}"
)
STRAGGLER = Kind(
    f"True, False, None, a factor or both of (factor, steps): {_STRAGGLER_NUMBERS}",
    _read_straggler_rule,
    _parse_straggler_rule,
    lambda rule: "off" if rule is None else f"{rule[0]:g},{rule[1]}",
    metavar="FACTOR[,STEPS]",
    allowed_text=f"on, off, FACTOR or FACTOR,STEPS as in 1.5,20: {_STRAGGLER_NUMBERS}",
)
SIGNAL = one_of(SIGNALS_ALLOWED)._replace(metavar="NAME")
SIGNALS = _texts(
    f"names separated by commas, of {', '.join(SIGNALS_ALLOWED)}",
    "NAME,...",
    lambda given: [*dict.fromkeys(name.strip() for name in given.split(","))],
    lambda names: names and set(names) <= set(SIGNALS_ALLOWED),
)
