"""Shell. What the command lines of both sides have in common: option types, spelling, help, errors.

Every option has one spelling with dashes and one with underscores, both of which may be
cut short as long as no other option begins so, and an environment variable
``DRUMBEAT_<NAME>``: argument over environment over default.
"""

import copy
import ipaddress
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from drumbeat import durations
from drumbeat.format import printable

if TYPE_CHECKING:
    # Only newer releases of click make the class generic, and only for checkers.
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

PORT_DEFAULT = 29400
"""Port of the coordinator where none is named."""

DURATION_MAX_S = 30 * 24 * 3600.0
"""Longest duration an option takes: a month. More is a slip of the unit."""

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""What can be the least that is logged, with the numbers of Python's ``logging``."""

_OTHER_LEVELS = {"notset": "debug", "warn": "warning", "critical": "error", "fatal": "error"}

EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130  # what a shell makes of SIGINT
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})", re.ASCII)
_COUNT = re.compile("-?[0-9]{1,12}", re.ASCII)
_HOST_PORT_ALLOWED = "HOST:PORT, HOST or [IPV6]:PORT, with a port from 1 to 65535"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HostPort:
    """An address to connect to; ``str()`` gives what gRPC takes, IPv6 in brackets."""

    host: str
    """Name or IP address, without brackets."""

    port: int
    """1 to 65535."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str, *, port_default: int = PORT_DEFAULT) -> HostPort:
    """Read ``host``, ``host:port``, ``[ipv6]`` or ``[ipv6]:port``.

    Raises:
        ValueError: ``text`` is anything else; the message says what is allowed.
    """
    host, port_text = _split_host_port(text.strip())
    is_port = port_text is None or re.fullmatch("[0-9]{1,5}", port_text, re.ASCII) is not None
    port = port_default if port_text is None else int(port_text) if is_port else 0
    if not host or not 1 <= port <= 65535:
        raise ValueError(f"{text!r} is not an address: give {_HOST_PORT_ALLOWED}")
    return HostPort(host, port)


def _split_host_port(text: str) -> tuple[str, str | None]:
    """Host (empty if malformed) and the text of the port (None if there is none)."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        is_host = bool(bracket) and _is_ipv6(host) and (not rest or rest.startswith(":"))
        return (host if is_host else ""), (rest[1:] if rest else None)
    host, colon, port_text = text.partition(":")
    is_host = _HOST_NAME.fullmatch(host) is not None
    return (host if is_host else ""), (port_text if colon else None)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


class DurationType(ParamType):
    """A duration between two bounds, as seconds."""

    name = "duration"

    def __init__(self, *, min_s: float = 0.0, max_s: float = DURATION_MAX_S) -> None:
        self.min_s = min_s
        self.max_s = max_s

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds of a text; defaults may come as numbers."""
        try:
            seconds = durations.parse_duration(value if isinstance(value, str) else str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if not self.min_s <= seconds <= self.max_s:
            low, high = durations.format_duration(self.min_s), durations.format_duration(self.max_s)
            self.fail(f"{value!r} is out of range: allowed is {low} to {high}.", param, ctx)
        return seconds


class CountType(ParamType):
    """A whole number between two bounds."""

    name = "number"

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number that a text stands for, in plain decimal digits."""
        text = str(value).strip()
        if _COUNT.fullmatch(text) is None or not self.low <= int(text) <= self.high:
            self.fail(
                f"{value!r} is given, allowed is a whole number from {self.low} to {self.high}.",
                param,
                ctx,
            )
        return int(text)


class HostPortType(ParamType):
    """The address of a coordinator, as ``HostPort``."""

    name = "host:port"

    def convert(
        self, value: str | HostPort, param: click.Parameter | None, ctx: click.Context | None
    ) -> HostPort:
        """Read an address, with the default port where none is given."""
        if isinstance(value, HostPort):
            return value
        try:
            return parse_host_port(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class LogLevelType(ParamType):
    """The least that is logged; also in the names and numbers of Python's ``logging``."""

    name = "level"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """One of ``LOG_LEVELS``."""
        word = str(value).strip().lower()
        if word.isdecimal() and len(word) < 4:
            number = int(word)
            return next((name for name, top in LOG_LEVELS.items() if number <= top), "error")
        word = _OTHER_LEVELS.get(word, word)
        if word not in LOG_LEVELS:
            self.fail(f"{value!r} is given, allowed is one of {', '.join(LOG_LEVELS)}.", param, ctx)
        return word


DURATION = DurationType()
HOST_PORT = HostPortType()
PORT_OR_ZERO = CountType(0, 65535)


class CommandOption(click.Option):
    """An option that help and errors show in its spelling with dashes only, in a section.

    ``variables`` are names that others gave to the same setting: read after its own.
    """

    def __init__(
        self,
        *args: Any,
        section: str = "Options",
        variables: Sequence[str] = (),
        **attrs: Any,
    ) -> None:
        super().__init__(*args, **attrs)
        self.section = section
        self.variables = tuple(variables)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The text of the option's own variable, else of the first of the others that has one."""
        found = self.found(ctx)
        return found[1] if found else None

    def found(self, ctx: click.Context) -> tuple[str | Sequence[str] | None, str] | None:
        """Return the first of the variables that is set, with its text."""
        for variable in (self.envvar, *self.variables):
            asked = copy.copy(self)
            asked.envvar = variable
            text = super(CommandOption, asked).resolve_envvar_value(ctx)
            if text is not None:
                return variable, text
        return None

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The help of the option without its spellings with underscores."""
        shown = copy.copy(self)
        shown.opts = _with_dashes(self.opts)
        return super(CommandOption, shown).get_help_record(ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The option as errors name it, with its environment variable."""
        shown = copy.copy(self)
        shown.opts = _with_dashes(self.opts)
        if ctx is not None and (found := self.found(ctx)) is not None:
            shown.envvar = found[0]
        # Older releases of click declare the context as required, but pass it on only.
        return super(CommandOption, shown).get_error_hint(ctx)


class SectionedCommand(click.Command):
    """A command whose options may be cut short, and whose help has the sections they are in."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, after options that were cut short are whole again."""
        return super().parse_args(ctx, _spelled_out(ctx, args, self.get_params(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of options per section, in the order of declaration."""
        records: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument):
                continue  # the text of the command says what they are
            record = param.get_help_record(ctx)
            if record is not None:
                section = param.section if isinstance(param, CommandOption) else "Other"
                records.setdefault(section, []).append(record)
        for section, rows in records.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def option(
    *names: str, section: str = "Options", variables: Sequence[str] = (), **attrs: Any
) -> Callable[[F], F]:
    """Declare an option with both spellings and its environment variable.

    Args:
        names: Spellings with dashes, the one that gives the variable its name first
            among the long ones; a bare identifier names the parameter.
        section: Heading of the help under which the option is listed.
        variables: Further environment variables, read in this order after the option's own.
        attrs: What ``click.option`` takes.
    """
    long_names = [name for name in names if name.startswith("--")]
    spellings = [*names, *(_underscored(name) for name in long_names if "-" in name[2:])]
    variable = f"DRUMBEAT_{_underscored(long_names[0])[2:].upper()}"
    declared = {"envvar": variable, "show_envvar": True, "show_default": True, **attrs}
    return click.option(
        *spellings, cls=CommandOption, section=section, variables=variables, **declared
    )


def console_options(function: F) -> F:
    """Declare the options for a command's own log: ``log_format``, ``log_level``, ``quiet``."""
    declarations = (
        option(
            "--log-format",
            section="Log",
            type=click.Choice(["auto", "console", "json"]),
            default="auto",
            help="auto, console: a plain line an event; json: a JSON object an event.",
        ),
        option(
            "--log-level",
            section="Log",
            type=LogLevelType(),
            variables=["LOGLEVEL"],
            metavar="[" + "|".join(LOG_LEVELS) + "]",
            default="info",
            help="The least that is logged; debug also shows the details of each event.",
        ),
        option(
            "-q",
            "--quiet",
            section="Log",
            is_flag=True,
            help="Log warnings and errors only; reports are shown all the same.",
        ),
    )
    for declare in reversed(declarations):
        function = declare(function)
    return function


def log_settings(params: dict[str, Any]) -> dict[str, Any]:
    """Return ``log_format`` and ``log_level`` as ``console_options`` ask for them."""
    level = params["log_level"]
    is_lowered = params["quiet"] and level in ("debug", "info")
    return {"log_format": params["log_format"], "log_level": "warning" if is_lowered else level}


def proxy_option(section: str = "Options") -> Callable[[F], F]:
    """Declare ``--use-proxy``: a coordinator is in the cluster, and proxies lead out of it."""
    return option(
        "--use-proxy",
        section=section,
        is_flag=True,
        help="Reach the coordinator through the proxy of http_proxy, https_proxy or grpc_proxy, "
        "which are ignored else.",
    )


def _spelled_out(
    ctx: click.Context, args: Sequence[str], params: Iterable[click.Parameter]
) -> list[str]:
    """Return the arguments with every option up to the first positional argument in full."""
    known = {
        name: param for param in params if isinstance(param, click.Option) for name in param.opts
    }
    rest, done = list(args), list[str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        text = rest.pop(0)
        name, equals, value = text.partition("=")
        option, is_value_next = None, False
        if name.startswith("--"):
            name = _full_name(ctx, name, known)
            option, is_value_next = known.get(name), not equals
        else:
            for at, letter in enumerate(text[1:], start=2):
                option = known.get(f"-{letter}")
                if option is None or not option.is_flag:
                    is_value_next = at == len(text)
                    break
        done.append(f"{name}{equals}{value}")
        if option is not None and not option.is_flag and is_value_next:
            done += rest[: option.nargs]
            del rest[: option.nargs]
    return done + rest


def _full_name(ctx: click.Context, name: str, known: dict[str, click.Option]) -> str:
    """Return the spelling that ``name`` begins, itself if none does.

    Raises:
        click.UsageError: Several options begin so.
    """
    if name in known:
        return name
    found = [whole for whole in known if whole.startswith(name)]
    if len({known[whole].name for whole in found}) > 1:
        names = ", ".join(sorted({_with_dashes(known[whole].opts)[0] for whole in found}))
        raise click.UsageError(f"{name} is ambiguous: it may stand for {names}.", ctx)
    return found[0] if found else name


def version_option(program: str) -> Callable[[F], F]:
    """Declare ``--version``: the program and the release of the distribution."""

    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if not value or ctx.resilient_parsing:
            return
        # Imported here: it costs a third of the start, for this one option.
        from importlib import metadata  # noqa: PLC0415

        try:
            version = metadata.version("drumbeat")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        click.echo(f"{program}, drumbeat {version}")
        ctx.exit()

    return click.option(
        "--version",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show the release and exit.",
    )


def parse(command: click.Command, argv: list[str] | None, *, program: str) -> Any:
    """Run a command that only reads its command line, and return what it returns.

    Returns an exit code where there is nothing more to do: after ``--help`` and
    ``--version`` (0), and after an error of usage, which is written to standard
    error (2). ``argv`` None stands for this process's own command line.
    """
    try:
        return command.main(args=argv, prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        write_error(program, error.format_message(), _hint_of(error, program))
        return EXIT_USAGE
    except click.Abort:
        return _EXIT_INTERRUPTED


def write_error(program: str, problem: str, hint: str = "") -> None:
    """Write what is wrong to standard error, as ``error_text`` has it."""
    click.echo(error_text(program, problem, hint), file=sys.stderr, nl=False)


def error_text(program: str, problem: str, hint: str = "") -> str:
    """Return what is wrong: one line per problem, then one with the hint."""
    lines = [f"{program}: error: {line}" for line in problem.splitlines()]
    if hint:
        lines.append(f"{program}: hint: {hint}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _hint_of(error: click.ClickException, program: str) -> str:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = ctx.command_path if ctx is not None else program
    return f"try '{path} --help'"


def _underscored(name: str) -> str:
    return f"--{name[2:].replace('-', '_')}"


def _with_dashes(spellings: Iterable[str]) -> list[str]:
    return [name for name in spellings if "_" not in name]
