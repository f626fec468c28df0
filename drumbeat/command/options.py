"""Shell. Command lines from declared settings: spelling, variables, help, errors.

Every option has one spelling with dashes and one with underscores, both of which may be
cut short as long as no other option begins so, and an environment variable
``DRUMBEAT_<NAME>``: argument over environment over default.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from drumbeat.command.settings import FLAG, LOG_LEVELS, Kind, Setting
from drumbeat.format import printable

if TYPE_CHECKING:
    # Only newer releases of click make the class generic, and only for checkers.
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130  # what a shell makes of SIGINT

F = TypeVar("F", bound=Callable[..., Any])


class Source(IntEnum):
    """Where a value comes from; what is higher counts before the others."""

    DEFAULT = 0
    VARIABLE_OF_TORCHRUN = 1
    VARIABLE = 2
    ARGUMENT = 3


class _Type(ParamType):
    """Reads texts as a kind of settings does."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.metavar
        self._parse = kind.parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; defaults are values already."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class CommandOption(click.Option):
    """The option of a setting."""

    def __init__(self, name: str, declared: Setting) -> None:
        kind, more = declared.kind, dict[str, Any]()
        if not declared.is_required:
            more["default"] = declared.default_text or declared.default
        if kind is not FLAG:
            more |= {"type": _Type(kind), "metavar": kind.metavar}
        super().__init__(
            [name, *declared.flags],
            is_flag=kind is FLAG,
            required=declared.is_required,
            hidden=declared.is_hidden,
            help=declared.help,
            envvar=declared.variable,
            show_envvar=True,
            show_default=declared.shown_default or True,
            **more,
        )
        self.section = declared.section
        self.variables = declared.variables

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The text of the option's own variable, else of the first of the others that has one."""
        found = self.found(ctx)
        return found[1] if found else None

    def found(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the first of the variables that is set, with its text."""
        for variable in (str(self.envvar), *self.variables):
            asked = copy.copy(self)
            asked.envvar = variable
            text = super(CommandOption, asked).resolve_envvar_value(ctx)
            if text is not None:
                return variable, text
        return None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The option as errors name it, with the variable that was read."""
        found = self.found(ctx) if ctx is not None else None
        spelled = " / ".join(repr(flag) for flag in self.opts)
        return f"{spelled} (env var: {(found[0] if found else self.envvar)!r})"


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


def options_of(*declarations: Mapping[str, Setting]) -> list[click.Parameter]:
    """Return the options of settings, each with the name of its field."""
    return [
        CommandOption(name, declared)
        for settings in declarations
        for name, declared in settings.items()
        if declared.section
    ]


def source_of(ctx: click.Context, name: str) -> Source:
    """Return where the value of an option comes from."""
    match ctx.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return Source.ARGUMENT
        case ParameterSource.ENVIRONMENT:
            option = next(param for param in ctx.command.params if param.name == name)
            found = option.found(ctx) if isinstance(option, CommandOption) else None
            is_own = found is None or found[0] == option.envvar
            return Source.VARIABLE if is_own else Source.VARIABLE_OF_TORCHRUN
    return Source.DEFAULT


def log_level(level: str, *, is_quiet: bool) -> str:
    """Return the least that is logged, as ``--log-level`` and ``--quiet`` say together."""
    return "warning" if is_quiet and LOG_LEVELS[level] < LOG_LEVELS["warning"] else level


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
            name = _full_name(ctx, name.replace("_", "-"), known)
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
        raise click.UsageError(
            f"{name} is ambiguous: it may stand for {', '.join(sorted(found))}.", ctx
        )
    return found[0] if found else name


def version_option(program: str) -> Callable[[F], F]:
    """Declare ``--version``: the program and the release of the distribution."""
    message = f"{program}, drumbeat %(version)s"
    return click.version_option(
        package_name="drumbeat", message=message, help="Show the release and exit."
    )


def parse(command: click.Command, argv: Sequence[str] | None, *, program: str) -> Any:
    """Run a command that only reads its command line, and return what it returns.

    Returns an exit code where there is nothing more to do: after ``--help`` and
    ``--version`` (0), and after an error of usage, which is written to standard
    error (2). ``argv`` None stands for this process's own command line.
    """
    try:
        return command.main(args=argv, prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        path = ctx.command_path if ctx is not None else program
        write_error(program, error.format_message(), f"try '{path} --help'")
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
