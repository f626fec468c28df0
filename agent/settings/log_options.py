"""Shell. The options of ``agent join`` for the output of workers; torchrun's, where it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agent.settings.output_config import NOWHERE, OutputConfig, parse_filters, parse_ranks
from drumbeat import options

F = TypeVar("F", bound=Callable[..., Any])

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""Variable by which torchrun takes the template."""


class _Checked(options.ParamType):
    """A text that a function must be able to read; handed on is what `read` returns."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def _read_streams(text: str) -> str:
    if text != NOWHERE:
        # Imported here: it costs as much as the rest of the command line, and few need it.
        from agent.workers.output.std import Std  # noqa: PLC0415

        Std.from_str(text)
    return text


_STREAMS = _Checked("streams", _read_streams)
_FILTERS = _Checked("texts", parse_filters)

_DECLARATIONS = (
    options.option(
        "--log-dir",
        section="Output",
        variables=["PET_LOG_DIR"],
        metavar="DIR",
        help="Directory for the files of the workers; created if needed.",
    ),
    options.option(
        "-r",
        "--redirects",
        section="Output",
        variables=["PET_REDIRECTS"],
        type=_STREAMS,
        metavar="STREAMS",
        default=NOWHERE,
        help="Streams of the workers that go to files instead of the console: 0 none, 1 stdout, "
        "2 stderr, 3 both; or by local rank, 0:3,1:2.",
    ),
    options.option(
        "-t",
        "--tee",
        section="Output",
        variables=["PET_TEE"],
        type=_STREAMS,
        metavar="STREAMS",
        default=NOWHERE,
        help="Streams that go to files and, line by line, to the console; as for --redirects.",
    ),
    options.option(
        "--local-ranks-filter",
        section="Output",
        variables=["PET_LOCAL_RANKS_FILTER"],
        type=_Checked("ranks", parse_ranks),
        metavar="RANK[,RANK]...",
        show_default="all",
        help="Workers whose output is shown on the console; files are not affected.",
    ),
    options.option(
        "--log-line-prefix-template",
        section="Output",
        metavar="TEXT",
        envvar=["DRUMBEAT_LOG_LINE_PREFIX_TEMPLATE", PREFIX_VARIABLE],
        show_default="[${role_name}${local_rank}]:",
        help="What a line shown by --tee begins with; ${rank} and ${run_id} are known, too.",
    ),
    options.option(
        "--duplicate-stdout-filters",
        section="Output",
        variables=["PET_DUPLICATE_STDOUT_FILTERS"],
        type=_FILTERS,
        metavar="TEXT[,TEXT]...",
        show_default="none",
        help="Lines of stdout shown by --tee that contain one of these are also collected in one "
        "file; ',,' stands for a comma.",
    ),
    options.option(
        "--duplicate-stderr-filters",
        section="Output",
        variables=["PET_DUPLICATE_STDERR_FILTERS"],
        type=_FILTERS,
        metavar="TEXT[,TEXT]...",
        show_default="none",
        help="The same for stderr.",
    ),
    options.option(
        "--logs-specs",
        section="Output",
        metavar="NAME",
        show_default="ours",
        help="Class of an installed package that decides on the files: an entry point of the "
        "group drumbeat.logs_specs or torchrun.logs_specs.",
    ),
    options.option(
        "--stderr-capture",
        section="Output",
        type=click.Choice(["on", "off"]),
        default="on",
        help="Whether the failure report has the last lines of stderr where it is in no file; "
        "off: workers write to the agent's own stderr.",
    ),
)


def log_options(function: F) -> F:
    """Declare all of them."""
    for declare in reversed(_DECLARATIONS):
        function = declare(function)
    return function


def event_log_options(function: F) -> F:
    """Declare the options for structured events."""
    declare_handler = options.option(
        "--event-log-handler",
        section="Log",
        variables=["PET_EVENT_LOG_HANDLER"],
        metavar="null|console|jsonl|NAME",
        show_default="jsonl with --event-log-file, else null",
        help="Who takes structured events and metrics; NAME is that of an installed handler.",
    )
    declare_file = options.option(
        "--event-log-file",
        section="Log",
        metavar="FILE",
        help="File to which the handler jsonl appends; created if needed.",
    )
    return declare_handler(declare_file(function))


def output_of(params: dict[str, Any]) -> OutputConfig:
    """Build the configuration from the options, by their names.

    Raises:
        UnknownLogsSpecs: No package offers what ``--logs-specs`` names.
    """
    if params["logs_specs"] is not None:
        from agent.workers.output.logs_specs import check_name  # noqa: PLC0415 - few need it

        check_name(params["logs_specs"])
    return OutputConfig(
        redirects=params["redirects"],
        tee=params["tee"],
        local_ranks_filter=params["local_ranks_filter"],
        line_prefix_template=params["log_line_prefix_template"],
        stdout_filters=params["duplicate_stdout_filters"] or (),
        stderr_filters=params["duplicate_stderr_filters"] or (),
        logs_specs=params["logs_specs"],
        is_stderr_captured=params["stderr_capture"] == "on",
    )
