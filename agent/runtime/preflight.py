"""Shell. Checks this host before an agent joins: devices, program, files.

A mistake found here costs a second; found by the workers, a round of the whole run.
"""

import dataclasses
import os
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from drumbeat.agent.errors import EventLogUnusable, LogDirectoryUnusable, ScriptNotFound, UsageError
from drumbeat.agent.failures.error_rules import ErrorRules
from drumbeat.agent.host.environment import inherited_environment
from drumbeat.agent.settings import kinds
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.placement import SLURM, slurm_place
from drumbeat.agent.telemetry import handlers
from drumbeat.agent.workers.devices.accelerators import (
    AcceleratorUnknown,
    count_accelerators,
    has_other_accelerators,
)
from drumbeat.agent.workers.devices.gpus import VISIBLE_DEVICES, entries
from drumbeat.agent.workers.devices.nvml import count_gpus
from drumbeat.agent.workers.output import logs, rules
from drumbeat.agent.workers.supervisor.spawner import find_program
from drumbeat.restart_rules import ALLOWED, FILE_CHARACTERS_MAX, parse_rules, rules_of_file
from drumbeat.text.format import install_command

PYTHON_VARIABLE = "PYTHON_EXEC"  # by which torchrun takes the interpreter of the workers


def check_host(config: AgentConfig) -> AgentConfig:
    """Make the files that a configuration names; ``UsageError`` if it can't be carried out."""
    environment = inherited_environment()
    devices, search_path = environment.get(VISIBLE_DEVICES, ""), environment.get("PATH")
    if config.virtual_local_rank and 0 < len(entries(devices)) < config.nproc_per_node:
        raise UsageError(
            f"--virtual-local-rank: {config.nproc_per_node} workers need a GPU each, but "
            f"{VISIBLE_DEVICES} is {devices!r}",
            f"name more devices in {VISIBLE_DEVICES}, or start fewer workers: --nproc-per-node",
        )
    handlers.check_name(config.event_handler)
    if config.metrics_port is not None:
        check_metrics(config)
    check_patterns(config)
    config = check_restart_rules(config)
    check_health_commands(config, search_path)
    config = check_placement(config)
    if isinstance(config.logs_specs, str):
        logs.check_name(config.logs_specs)
    kind, target, _ = config.program
    is_own_python = config.python == sys.executable
    match kind:
        case "program":
            check_program(target, search_path=search_path)
        case "script":
            check_script(target)
        case "module" if is_own_python:  # another one has places of its own
            check_module(target)
    if kind in ("script", "module") and not is_own_python:
        check_program(config.python, search_path=search_path, named_by=PYTHON_VARIABLE)
    # Last, so that a command line with another mistake leaves no file or directory behind.
    event_log, log_dir = config.event_log_file, config.log_dir
    if event_log is not None:
        event_log = str(Path(event_log).absolute())
        if config.event_handler == handlers.JSON_LINES:
            try:
                os.close(handlers.open_private(event_log))
            except OSError as error:
                raise EventLogUnusable(event_log, error.strerror or str(error)) from None
    if log_dir is not None:
        log_dir = prepare_log_dir(log_dir)
    config = config.in_group()
    config = dataclasses.replace(config, event_log_file=event_log, log_dir=log_dir)
    return check_preloading(config) if config.is_preloading else config


def check_metrics(config: AgentConfig) -> None:
    """Make sure that metrics could be served. Raises ``UsageError``."""
    if find_spec("prometheus_client") is None:
        raise UsageError(
            "--metrics-port: prometheus_client is not installed",
            f"{install_command('metrics')} installs it",
        )
    # What else needs none of it: TLS takes a while to import.
    from drumbeat.agent.telemetry.metrics.guard import Guard  # noqa: PLC0415

    Guard(config).check()


def check_health_commands(config: AgentConfig, search_path: str | None) -> None:
    """Make sure that the programs of health checks exist. Raises ``UsageError``."""
    for command in config.health_check:
        program = shlex.split(command)[0]
        if why := find_program(program, search_path)[1]:
            hint = "give the path of a program, with its arguments in the same quotes"
            raise UsageError(f"--health-check: {program}: {why}", hint)


def check_patterns(config: AgentConfig) -> None:
    """Make sure that patterns can be looked for. Raises ``UsageError``."""
    option = "--hang-pattern" if config.hang_pattern else "--fatal-pattern"
    if config.output_patterns and find_spec("regex") is None:
        hint = f"{install_command('patterns')} installs it"
        raise UsageError(f"{option}: the library regex is not installed", hint)
    for pattern in config.output_patterns:
        try:
            rules.compiled(pattern)
        except ValueError as error:
            option = "--hang-pattern" if pattern.within_s else "--fatal-pattern"
            problem = f"{option}: the library regex does not take '{pattern.regex}': {error}"
            hint = "write it without the library's own extensions, such as {e} for similar texts"
            raise UsageError(problem, hint) from None


def check_restart_rules(config: AgentConfig) -> AgentConfig:
    """Read the file of restart rules; make sure that they can be used. Raises ``UsageError``."""
    texts, option, path = tuple(config.restart_rule), "--restart-rule", config.restart_rules
    if path is not None:
        option = "--restart-rules"
        try:
            with Path(path).open(encoding="utf-8") as file:
                content = file.read(FILE_CHARACTERS_MAX + 1)
            if len(content) > FILE_CHARACTERS_MAX:
                raise UsageError(f"{option}: {path} has more than {FILE_CHARACTERS_MAX} characters")
            texts = rules_of_file(content, path, kinds.check_rule)
        except OSError as error:
            raise UsageError(f"{option}: {path}: {error.strerror or error}") from None
        except ValueError as error:
            raise UsageError(f"{option}: {error}; allowed is {ALLOWED}") from None
    rules = parse_rules(texts)
    if any(rule.regex for rule in rules) and find_spec("regex") is None:
        hint = f"{install_command('patterns')} installs it"
        raise UsageError(f"{option}: error= needs the library regex, which is not installed", hint)
    try:
        ErrorRules(rules)
    except ValueError as error:
        raise UsageError(f"{option}: the library regex does not take a pattern: {error}") from None
    return dataclasses.replace(config, restart_rule=texts, restart_rules=None)


def check_placement(config: AgentConfig) -> AgentConfig:
    """Find out where this host is, and whether it can run the preflight. Raises ``UsageError``."""
    environment, what = inherited_environment(), "rank-order slurm"
    try:
        if config.rank_order == (SLURM,):
            config = dataclasses.replace(config, slurm_place=slurm_place(environment))
        what = f"preflight '{config.preflight}'"
        if config.preflight is not None:
            command = (*shlex.split(config.preflight),) or ("",)
            check_program(command[0], search_path=environment.get("PATH"))
            config = dataclasses.replace(config, preflight_command=command)
    except (ValueError, ScriptNotFound) as error:
        raise UsageError(f"--{what}: {error}") from None
    return config


def check_preloading(config: AgentConfig) -> AgentConfig:
    """Find out from where workers import modules. Raises ``UsageError``."""
    if config.program.kind == "program":
        raise UsageError(
            f"--preload: {config.program.target} is a program of its own, and only what Python "
            "runs can find modules imported",
            "leave --preload and --preload-script out, or name a Python script or module",
        )
    if config.python != sys.executable:
        note = (
            f"--preload is not used: {PYTHON_VARIABLE} names another interpreter, and only what "
            "this agent's own has imported can be shared"
        )
        return dataclasses.replace(
            config, preload=(), preload_script=None, notes=(*config.notes, note)
        )
    script, path = config.preload_script, config.preload_path
    if script is not None:
        try:
            check_script(script)
        except ScriptNotFound as error:
            hint = "name a Python script, or leave --preload-script out"
            raise UsageError(f"--preload-script: {error}", hint) from None
        script = str(Path(script).absolute())
    if not path and not os.environ.get("PYTHONSAFEPATH"):
        kind, target, _ = config.program
        # As Python has it: the folder of a script, behind links; itself if it is an archive.
        of_script = target if zipfile.is_zipfile(target) else str(Path(target).resolve().parent)
        path = (str(Path.cwd()),) if kind == "module" else (of_script,)
    return dataclasses.replace(config, preload_script=script, preload_path=path)


def count_workers(word: str) -> int:
    """Return how many workers a word asks for, as torchrun: one per core or device of a type.

    "auto" is per accelerator if there is any, else per core.
    """
    environment, number, why = inherited_environment(), 0, "torch sees none"
    # To ask the driver takes up to seconds; cores need no GPUs.
    if word in ("auto", "gpu", "cuda"):
        number = count_gpus(environment.get(VISIBLE_DEVICES))
        why = f"this process sees no GPU (/dev/nvidia*, {VISIBLE_DEVICES})"
    is_torch_asked = word not in ("auto", "gpu", "cuda") or has_other_accelerators()
    if not number and word != "cpu" and is_torch_asked:
        try:
            python = environment.get(PYTHON_VARIABLE) or sys.executable
            number = count_accelerators(word, python, environment)
        except AcceleratorUnknown as error:
            why = f"torch cannot be asked: {error}"
    if not number and word not in ("auto", "cpu"):
        raise UsageError(
            f"--nproc-per-node: {word!r} is given, but {why}; "
            "allowed here is a number, auto, cpu or a device type that torch sees"
        )
    return number or len(os.sched_getaffinity(0))


def check_script(path: str) -> None:
    """Make sure that Python can run ``path``. Raises ``ScriptNotFound``."""
    script, why = Path(path), "it cannot be read"
    with suppress(PermissionError):  # of a directory above it
        if script.is_dir():
            why = "it is a directory"
        elif not script.exists():
            why = f"there is no such file (looked in {Path.cwd()})"
        elif os.access(path, os.R_OK):
            return
    raise ScriptNotFound(path, why)


def check_module(name: str) -> None:
    """Make sure that Python could find what ``-m name`` runs. Raises ``ScriptNotFound``.

    Nothing is imported, for that would run the packages around it. What a package may look for
    in a place of its own, or a finder of its own might find, is left to Python.
    """
    # Workers have this directory in the place where we have that of our own program.
    here = [] if os.environ.get("PYTHONSAFEPATH") else [""]
    places: Iterable[str] | None = [*here, *sys.path]
    name_so_far = ""
    for part in name.split("."):
        if not part:
            raise ScriptNotFound(name, "it is not the name of a module")
        if places is None:
            raise ScriptNotFound(name, f"{name_so_far} is not a package")
        name_so_far = f"{name_so_far}.{part}" if name_so_far else part
        try:
            spec = _find_module(name_so_far, places)
        except KeyError:
            return  # a namespace in a package that would have to be imported first
        if spec is None:
            raise ScriptNotFound(name, f"there is no module named {name_so_far}")
        if _looks_elsewhere(spec):
            return
        places = spec.submodule_search_locations
    if places is not None and _find_module(f"{name}.__main__", places) is None:
        raise ScriptNotFound(name, f"it is a package without {name}.__main__")


def _find_module(name: str, places: Iterable[str]) -> ModuleSpec | None:
    for finder in sys.meta_path:
        # Other finders than that of the path take no path for a name without dots.
        where = list(places) if "." in name or finder is PathFinder else None
        if (spec := finder.find_spec(name, where)) is not None:
            return spec
    return None


def _looks_elsewhere(spec: ModuleSpec) -> bool:
    """Return whether a package may find modules that are not where it is."""
    if spec.submodule_search_locations is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).read_bytes()
    except OSError:
        return True  # not a file: what it does can't be known
    return any(word in text for word in (b"__path__", b"meta_path", b"path_hooks", b"sys.modules"))


def check_program(program: str, *, search_path: str | None, named_by: str = "") -> None:
    """Make sure that ``program`` can be executed, which the variable ``named_by`` may name."""
    if why := find_program(program, search_path)[1]:
        raise ScriptNotFound(program, why + (f" (of {named_by})" if named_by else ""))


def prepare_log_dir(path: str) -> str:
    """Create the directory with its parents if needed, try to write there, return it absolute."""
    directory = Path(path).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"probe")
    except (FileExistsError, NotADirectoryError):
        raise LogDirectoryUnusable(str(directory), "it is not a directory") from None
    except OSError as error:
        raise LogDirectoryUnusable(str(directory), error.strerror or str(error)) from None
    return str(directory)
