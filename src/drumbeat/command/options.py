"""Shell. Command lines from declared settings: spelling, variables, help, errors.

Every option has one spelling with dashes and one with underscores, both of which may be
cut short as long as no other option begins so, and an environment variable
``DRUMBEAT_<NAME>``: argument over environment over default.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from drumbeat.access.exposure import withdraw_token
from drumbeat.command.console import close_console, write_text
from drumbeat.command.settings import FLAG, LOG_LEVELS, Kind, Setting
from drumbeat.text.format import printable

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what a shell makes of SIGINT
VERSION_HELP = "Show the release and exit."
DOCUMENTATION = f"\b\nDocumentation: {Path(__file__).parents[1] / 'README.md'}"


class Source(IntEnum):
    """Where a value comes from; what is higher counts before the others."""

    DEFAULT = 0
    VARIABLE_OF_TORCHRUN = 1
    VARIABLE = 2
    ARGUMENT = 3


class _Value(click.ParamType):  # type: ignore[type-arg] # generic only of late
    """The values of a setting, as click reads and completes them."""

    name = "value"

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._kind.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the texts of a variable that has several, a line each."""
        return [line for line in rv.splitlines() if line]

    def shell_complete(
        self, _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self._kind.metavar == "FILE":
            return [CompletionItem(incomplete, type="file")]
        words = self._kind.metavar[1:-1].split("|") if self._kind.metavar.startswith("[") else []
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class CommandOption(click.Option):
    """The option of a setting."""

    def __init__(self, name: str, declared: Setting) -> None:
        kind = declared.kind
        default: dict[str, Any] = {"default": declared.default_text or declared.default}
        super().__init__(
            [name, *declared.flags],
            is_flag=kind is FLAG,
            multiple=kind.is_repeated,
            required=declared.is_required,
            hidden=declared.is_hidden,
            help=declared.help,
            envvar=declared.variable if declared.has_variable else None,
            show_envvar=declared.has_variable,
            show_default=declared.shown_default or True,
            metavar=(f"[{kind.metavar}]" if declared.bare else kind.metavar) or None,
            type=None if kind is FLAG else _Value(kind),
            **({} if declared.is_required else default),
        )
        self.declared = declared

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The text of the option's own variable, else of the first of the others that has one."""
        if not self.declared.has_variable:
            return None
        withdrawn: dict[str, str] = ctx.obj or {}
        return withdrawn.get(self.variable) or os.environ.get(self.variable) or None

    @property
    def variable(self) -> str:
        """The first of its variables that is set, else its own."""
        variables = (self.declared.variable, *self.declared.variables)
        return next(filter(os.environ.get, variables), variables[0])

    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002
        """The option as errors name it, with the variable that was read."""
        option = " / ".join(map(repr, self.opts))
        return f"{option} (env var: {self.variable!r})" if self.declared.has_variable else option


class SectionedCommand(click.Command):
    """A command whose options may be cut short, and whose help has the sections they are in."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return them. click keeps the option as it was first made, with or without a group."""
        return ["-h", "--help"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Raises ``click.UsageError`` if several options begin as one does."""
        options = {
            flag: param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for flag in param.opts
        }

        names = {flag.lstrip("-") for flag in options}

        def in_full(name: str) -> str:
            name = name.replace("_", "-")
            if name in names:  # as click asks of each option that there is
                return name
            longer = [flag for flag in options if flag.startswith(f"--{name}")]
            if len({options[flag].name for flag in longer}) > 1:
                stands_for = f"it may stand for {', '.join(sorted(longer))}"
                raise click.UsageError(f"--{name} is ambiguous: {stands_for}.", ctx)
            return longer[0][2:] if longer else name

        ctx.token_normalize_func = in_full
        given, at = list(args), 0
        while at < len(given) and given[at].startswith("-") and given[at].strip("-"):
            word, equals, _ = given[at].partition("=")
            option = options.get(f"--{in_full(word[2:])}" if word.startswith("--") else word)
            takes_next = option is not None and not option.is_flag and not equals
            if takes_next and isinstance(option, CommandOption) and option.declared.bare:
                takes_next = _can_be_read(option.declared.kind, "".join(given[at + 1 : at + 2]))
                given[at] += "" if takes_next else f"={option.declared.bare}"
            at += 1 + takes_next
        return super().parse_args(ctx, given)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of options per section, in the order of declaration."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            # The text of the command says what arguments are.
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
                section = param.declared.section if isinstance(param, CommandOption) else "Other"
                sections.setdefault(section, []).append(row)
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def _can_be_read(kind: Kind, text: str) -> bool:
    try:
        kind.parse(text)
    except ValueError:
        return False
    return True


class SectionedGroup(click.Group):
    """A group whose help lists its commands in the sections that they were added to."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections: dict[str, list[click.Command]] = {}

    def add_section(self, name: str, *commands: click.Command) -> None:
        """Add commands below a head of their own."""
        for command in commands:
            self.add_command(command)
            self.sections.setdefault(name, []).append(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write one list of commands per section, in the order in which they were added."""
        widest = max(len(name) for name in self.commands)
        for section, commands in self.sections.items():
            limit = formatter.width - 6 - widest
            rows = [
                (f"{command.name:{widest}}", command.get_short_help_str(limit))
                for command in commands
            ]
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
            assert isinstance(option, CommandOption), "no other has a variable"
            is_own = option.variable == option.declared.variable
            return Source.VARIABLE if is_own else Source.VARIABLE_OF_TORCHRUN
    return Source.DEFAULT


def log_level(level: str, *, is_quiet: bool) -> str:
    """Return the least that is logged, as ``--log-level`` and ``--quiet`` say together."""
    return max(level, "warning", key=LOG_LEVELS.__getitem__) if is_quiet else level


def version_option(program: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare ``--version``: the program and the release of the distribution."""
    message = f"{program}, drumbeat %(version)s"
    return click.version_option(package_name="drumbeat", message=message, help=VERSION_HELP)


def run(
    command: click.Command,
    argv: Sequence[str] | None,
    perform: Callable[[Any], int],
    *,
    program: str,
    path: str = "",
    errors: Any,
) -> int:
    """Read a command line, ``perform`` what its command returns, and return the exit code.

    That is 0 after ``--help`` and ``--version``. ``argv`` None stands for this process's own
    arguments. Errors begin with ``program``; ``path`` is what the user typed to call it, where
    that differs. ``errors`` is the class of errors that end a command; they have a ``hint`` and
    an ``exit_code``.
    """
    withdrawn, path = withdraw_token(), path or program
    try:
        parsed = command.main(args=argv, prog_name=path, standalone_mode=False, obj=withdrawn)
        return parsed if isinstance(parsed, int) else perform(parsed)
    except click.ClickException as error:
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        path = ctx.command_path if ctx is not None else path
        write_error(program, error.format_message(), f"try '{path} --help'")
        return EXIT_USAGE
    except click.Abort:
        return EXIT_INTERRUPTED
    except errors as error:
        write_error(program, str(error), error.hint, mark="error: " if error.exit_code else "")
        return int(error.exit_code)
    finally:
        close_console()


@contextmanager
def writing_output(failed: Callable[[str], Exception]) -> Iterator[None]:
    """Write to standard output within this. A reader that stops early, as `head` does, is fine.

    Raises what ``failed`` makes of the reason why it cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What Python still holds must not fail at the end once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            problem = f"standard output cannot be written: {error.strerror or error}"
            raise failed(problem) from error


def write_error(program: str, problem: str, hint: str = "", *, mark: str = "error: ") -> None:
    """Write why a command ends, behind what was logged: one line per problem, then the hint."""
    lines = [f"{mark}{line}" for line in problem.splitlines()] + [f"hint: {hint}"] * bool(hint)
    write_text("".join(f"{printable(f'{program}: {line}')}\n" for line in lines))
