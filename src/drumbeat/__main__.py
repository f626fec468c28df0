"""Shell. The commands: ``drumbeat agent`` and ``drumbeat coordinator``, each also alone."""

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from drumbeat import VERSION
from drumbeat.command import options

_MODULES = {
    "agent": "drumbeat.agent.cli",
    "coordinator": "drumbeat.coordinator.command.cli",
}


class _Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _MODULES or sys.platform != "linux":
            return click.Command(name) if name in _MODULES else None
        command: click.Command = getattr(import_module(_MODULES[name]), name)
        return command


@click.group(
    cls=_Commands,
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'drumbeat agent' and 'drumbeat coordinator' are also installed as 'agent' and "
    f"'coordinator'.\n\n{options.DOCUMENTATION}",
)
@click.version_option(VERSION, message="drumbeat %(version)s", help=options.VERSION_HELP)
@click.pass_context
def drumbeat(ctx: click.Context) -> None:
    """Elastic, fault-tolerant training."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``drumbeat``; return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in _MODULES:
        return _run(given[0], given[1:], path=f"drumbeat {given[0]}")
    return options.run(drumbeat, given, lambda _: 0, program="drumbeat", errors=())


def agent() -> int:
    """Run the command ``agent``; return its exit code."""
    return _run("agent")


def coordinator() -> int:
    """Run the command ``coordinator``; return its exit code."""
    return _run("coordinator")


def _run(command: str, argv: Sequence[str] | None = None, *, path: str = "") -> int:
    if sys.platform != "linux":
        print(
            f"{command}: error: this system is {sys.platform!r}, and drumbeat runs on Linux only\n"
            f"{command}: hint: use a Linux machine or container; training code that imports "
            "worker_sdk alone runs anywhere",
            file=sys.stderr,
        )
        return options.EXIT_USAGE
    return int(import_module(f"drumbeat.{command}.__main__").main(argv, path=path or command))


if __name__ == "__main__":
    sys.exit(main())
