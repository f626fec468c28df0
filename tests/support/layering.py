"""Checks of the rules of layering, on the syntax tree of each module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

# Where the packages lie, and how they are imported.
FOLDERS = {
    "src/drumbeat": "drumbeat",
    "agent": "drumbeat.agent",
    "coordinator": "drumbeat.coordinator",
    "worker_sdk": "worker_sdk",
}
PACKAGES = (
    "drumbeat.agent",
    "drumbeat.coordinator",
    "drumbeat.standalone",
    "drumbeat.client",
    "drumbeat.torchrun",
    "drumbeat",
    "worker_sdk",
)
OTHER_CODE = ("bench", "examples", "scripts", "tests")

# Which of our packages each may import beside itself.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "drumbeat": frozenset(),
    "worker_sdk": frozenset({"drumbeat"}),
    "drumbeat.coordinator": frozenset({"drumbeat"}),
    "drumbeat.agent": frozenset({"drumbeat", "worker_sdk"}),
    "drumbeat.standalone": frozenset({"drumbeat.agent", "drumbeat.coordinator", "drumbeat"}),
    # Other launchers: they have the agent's session and core, and its store.
    "drumbeat.client": frozenset({"drumbeat.agent", "drumbeat"}),
    "drumbeat.torchrun": frozenset({"drumbeat.client", "drumbeat.agent", "drumbeat"}),
}
MAY_ALSO_IMPORT = {
    # `agent join --standalone` is one command, and `standalone` needs the agent.
    "agent/__main__.py": frozenset({"drumbeat.standalone"}),
    # Hands on what programs ask of the package, loaded when they ask.
    "src/drumbeat/__init__.py": frozenset({"drumbeat.agent"}),
    # Runs in workers, as part of their restarts in process.
    "src/drumbeat/nvrx.py": frozenset({"worker_sdk"}),
}

# What the command line of the coordinator is made of, and who may import it: itself, and entries.
COMMAND_LINE = "drumbeat.coordinator.command"
COMMAND_LINE_IMPORTERS = frozenset({"coordinator/__main__.py"})

# Modules that only compute: of the standard library, and the one that makes values.
VALUE_MODULES = frozenset(
    {
        "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "copy",
        "dataclasses", "enum", "fnmatch", "functools", "graphlib", "hashlib", "heapq", "hmac",
        "ipaddress", "itertools", "json", "math", "msgspec", "operator", "re", "shlex", "string",
        "struct", "textwrap", "types", "typing", "zlib",
    }
)  # fmt: skip
# Names that only describe, from modules that otherwise act.
VALUE_NAMES = {
    "signal": frozenset({"Signals"}),
    "datetime": frozenset({"timedelta"}),
    "urllib.parse": frozenset({"quote", "quote_plus"}),
}
# What a pure module hands on to others, who ask for it by name, without loading it for itself.
HANDED_ON = {"agent/errors.py": frozenset({"drumbeat.agent.failures.process_failure"})}
# What an annotation may name although only the shell may make one.
ANNOTATION_MODULES = frozenset({"random"})
ACTING_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint", "__import__"})
ACTING_MODULES = frozenset({"os", "random", "time"})

# The SDK lives in the user's environment, where every requirement is a conflict.
# Of the shared package it has the protocol; the rest of it speaks to people.
WORKER_SDK_MAY_NEED = frozenset({"google", "grpc"}) | sys.stdlib_module_names

# Who may import torch; nothing of ours imports them, only the user's code does, or torchrun.
TORCH_IMPORTERS = frozenset(
    {"worker_sdk/torch.py", "src/drumbeat/torchrun/handler.py", "src/drumbeat/nvrx.py"}
)

# Who reads the environment; everyone else is handed what it needs.
ENVIRONMENT_READERS = ("config.py", "cli.py")
ENVIRONMENT_EXCEPTIONS = {
    "coordinator/cluster/join_token.py": "whether standard output is a log",
    "coordinator/observe/tracing/exporter.py": "how many spans may wait",
    "src/drumbeat/nvrx.py": "where the store of the round is",
    "worker_sdk/runtime.py": "how the worker's agent is reached",
    "worker_sdk/inprocess/state.py": "what torch reads, and what changes by iteration",
    "worker_sdk/errors.py": "where an error is recorded, which may change",
    "src/drumbeat/command/options.py": "what the variables of options say",
    "src/drumbeat/command/logs.py": "whether the user's terminal is to have colours",
    "src/drumbeat/command/live_line.py": "whether a user looks at this terminal",
    "src/drumbeat/command/loading.py": "how gRPC is to be loaded",
    "agent/host/environment.py": "what workers inherit",
    "agent/runtime/preflight.py": "what workers inherit",
    "agent/workers/supervisor/launch.py": "what its supervisor inherits",
    "src/drumbeat/access/exposure.py": "a token, which leaves it",
    "agent/host/private_directory.py": "where the files of this user's session are",
    "agent/failures/process_failure.py": "which values are secrets",
    "coordinator/evidence/archive.py": "which values are secrets",
    "agent/workers/startup/sitecustomize.py": "what this interpreter is, and its processes are not",
    "agent/workers/startup/drumbeat_observer.py": "where the agent listens",
    "agent/workers/template/differences/import_values.py": "copies of it that imports have made",
    "agent/workers/template/differences/late_settings.py": "what a worker sets too late",
    "agent/workers/template/preloading.py": "who reads it while modules are imported",
    "agent/workers/template/process.py": "what workers have in common",
    "agent/workers/template/worker.py": "what a worker has for itself",
    "agent/launching/worker.py": "which worker it is, before it becomes the user's function",
    "agent/compat/multiprocessing/context.py": "what workers inherit",
    "agent/compat/multiprocessing/multiprocess_context.py": "what workers inherit",
    "agent/compat/multiprocessing/signals.py": "which signals a launcher handles",
}

# Dataclasses among the values of cores, each for a field that a Struct can't have; ADR 33.
DATACLASS_VALUES = {
    "coordinator/core/events.py": frozenset({"TokenCreated"}),
}

FUNCTION_LINES_MAX = 60


@dataclass(frozen=True, slots=True)
class Module:
    """One source file."""

    path: PurePosixPath
    """Relative to the repository."""
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Module:
        """Parse ``text`` as the module at ``path``."""
        return cls(PurePosixPath(path), text, ast.parse(text))

    @property
    def package(self) -> str:
        """Name of the package of ours that it belongs to, or of its top-level folder."""
        return package_of(self.name) or self.path.parts[0]

    @property
    def name(self) -> str:
        """Dotted name by which it is imported."""
        path = str(self.path.with_suffix("")).removesuffix("/__init__")
        for folder, package in FOLDERS.items():
            if path == folder or path.startswith(f"{folder}/"):
                path = package + path.removeprefix(folder)
        return path.replace("/", ".")

    @property
    def mark(self) -> str:
        """``Pure``, ``Shell`` or nothing: the first word of its docstring."""
        word = (ast.get_docstring(self.tree) or "").partition(".")[0]
        return word if word in ("Pure", "Shell") else ""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name; ``name`` is empty for a plain ``import module``."""

    line: int
    module: str
    name: str
    is_annotation_only: bool

    @property
    def top(self) -> str:
        """Top-level package of what is imported."""
        return self.module.partition(".")[0]

    @property
    def package(self) -> str:
        """Package of ours that it belongs to, or nothing."""
        return package_of(f"{self.module}.{self.name}")


def package_of(name: str) -> str:
    """Return the package of ours that the module ``name`` belongs to, or nothing."""
    return next((each for each in PACKAGES if f"{name}.".startswith(f"{each}.")), "")


def modules_below(folders: Iterable[str]) -> Iterator[Module]:
    """Read all our modules below ``folders``, one by one; generated ones are not ours."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        if "_pb2" not in path.name:
            yield Module.parse(str(path.relative_to(ROOT)), path.read_text())


@cache
def nodes(module: Module) -> list[ast.AST]:
    """Return all there is in ``module``: the checks look at it again and again."""
    return list(ast.walk(module.tree))


@cache
def statements(module: Module) -> list[ast.AST]:
    """Return all statements of ``module``: a fifth of what there is."""
    found: list[ast.AST] = [module.tree]
    for node in found:
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            below = getattr(node, field, ())
            found += below if isinstance(below, list) else ()
    return found


@cache
def imports(module: Module) -> list[Import]:
    """Return every import of ``module``, wherever in it it stands."""
    return list(_imports(module))


def _imports(module: Module) -> Iterator[Import]:
    annotation_only = {
        id(node)
        for block in statements(module)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    is_package = module.path.name == "__init__.py"
    for node in statements(module):
        hidden = id(node) in annotation_only
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, "", hidden)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                own = module.name.split(".")
                kept = own[: len(own) - node.level + is_package]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                yield Import(node.lineno, base, alias.name, hidden)


def check_mark(module: Module) -> Iterator[str]:
    """A module says what it is; a package that only gathers names needs not."""
    gathers_only = all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for node in module.tree.body
    )
    if not module.mark and not (module.path.name == "__init__.py" and gathers_only):
        yield f"{module.path}:1: the docstring starts with neither 'Pure.' nor 'Shell.'"


def check_purity(module: Module, pure_names: frozenset[str]) -> Iterator[str]:
    """A pure module computes: it imports what computes and calls nothing that acts."""
    if module.mark != "Pure":
        return
    handed_on = HANDED_ON.get(str(module.path), frozenset())
    deferred = {
        line
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for found in imports(module):
        if found.module in handed_on and (found.is_annotation_only or found.line in deferred):
            continue
        is_value = (
            found.top in VALUE_MODULES
            or found.name in VALUE_NAMES.get(found.module, ())
            or (found.is_annotation_only and found.module in ANNOTATION_MODULES)
        )
        is_pure = found.module in pure_names or f"{found.module}.{found.name}" in pure_names
        if not is_value and not is_pure:
            what = f"{found.module}.{found.name}".rstrip(".")
            yield f"{module.path}:{found.line}: pure, but imports {what}"
    for node in nodes(module):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ACTING_CALLS or called.partition(".")[0] in ACTING_MODULES:
                yield f"{module.path}:{node.lineno}: pure, but calls {called}"


def check_direction(module: Module) -> Iterator[str]:
    """Packages import each other one way only, and torch in one place that nobody imports."""
    permitted = MAY_IMPORT[module.package] | {module.package}
    permitted |= MAY_ALSO_IMPORT.get(str(module.path), frozenset())
    for found in imports(module):
        if found.package and found.package not in permitted:
            yield f"{module.path}:{found.line}: {module.package} imports {found.package}"
        is_command_line = f"{found.module}.{found.name}.".startswith(f"{COMMAND_LINE}.")
        if (
            is_command_line
            and module.package == "drumbeat.coordinator"
            and not module.name.startswith(COMMAND_LINE)
            and str(module.path) not in COMMAND_LINE_IMPORTERS
        ):
            yield f"{module.path}:{found.line}: the server imports the command line"
        if found.top == "torch" and str(module.path) in TORCH_IMPORTERS:
            continue
        if found.module == "worker_sdk.torch" or (found.module, found.name) == (
            "worker_sdk",
            "torch",
        ):
            yield f"{module.path}:{found.line}: imports what imports torch"
        if found.top == "torch":
            yield f"{module.path}:{found.line}: imports torch"
        is_light = found.top in WORKER_SDK_MAY_NEED or found.module.startswith("drumbeat.worker.v1")
        if module.package == "worker_sdk" and found.top != "worker_sdk" and not is_light:
            yield f"{module.path}:{found.line}: worker_sdk needs {found.module}"


def check_names(module: Module) -> Iterator[str]:
    """``agent`` and ``coordinator`` are folders; imported by these names, modules exist twice."""
    for found in imports(module):
        if found.top in ("agent", "coordinator"):
            yield f"{module.path}:{found.line}: imports {found.top}, which is drumbeat.{found.top}"


def check_environment(module: Module) -> Iterator[str]:
    """The environment is read in few places."""
    if module.path.name in ENVIRONMENT_READERS or str(module.path) in ENVIRONMENT_EXCEPTIONS:
        return
    names = ("environ", "environb", "getenv", "putenv", "unsetenv")
    for node in nodes(module):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
        ):
            yield f"{module.path}:{node.lineno}: os.{node.attr}"
    for found in imports(module):
        if found.module == "os" and found.name in names:
            yield f"{module.path}:{found.line}: os.{found.name}"


def check_values(module: Module) -> Iterator[str]:
    """Values of cores are quick to import, and a Struct has its defaults from msgspec."""
    permitted = DATACLASS_VALUES.get(str(module.path), frozenset())
    foreign = {each.name for each in imports(module) if each.module == "dataclasses"}
    for node in nodes(module):
        if not isinstance(node, ast.ClassDef):
            continue
        where = f"{module.path}:{node.lineno}: {node.name}"
        decorated = [ast.unparse(each) for each in node.decorator_list]
        is_value = any("dataclass(" in each and "frozen=True" in each for each in decorated)
        if is_value and ".core" in module.name and node.name not in permitted:
            yield f"{where} is a value of a core, but no Struct"
        if decorated or not any(each.arg == "frozen" for each in node.keywords):
            continue
        defaults = [each.value for each in node.body if isinstance(each, ast.AnnAssign)]
        called = {ast.unparse(each.func) for each in defaults if isinstance(each, ast.Call)}
        if called & (foreign | {"dataclasses.field"}):
            yield f"{where} is a Struct with a field of a dataclass"


def check_size(module: Module) -> Iterator[str]:
    """Functions fit in a reader's head."""
    for node in statements(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                where = f"{module.path}:{node.lineno}"
                yield f"{where}: {node.name} has {length} lines, more than {FUNCTION_LINES_MAX}"


def check_circles(modules: Sequence[Module]) -> Iterator[str]:
    """No modules import each other in a circle, wherever in them the imports stand."""
    names = {module.name: module for module in modules}
    graph = {
        name: {
            found
            for each in imports(module)
            for found in (f"{each.module}.{each.name}", each.module)
            if found in names and found != name
        }
        for name, module in names.items()
        # a package hands on what is in it, and is no module of its own
        if module.path.name != "__init__.py"
    }
    for targets in graph.values():
        targets.intersection_update(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "circle: " + " -> ".join(reversed(error.args[1]))


def check_shipping(modules: Iterable[Module]) -> Iterator[str]:
    """A checkout works without ``__init__.py``; what is installed from it has no such folder."""
    for home in sorted({module.path.parent for module in modules}):
        if home.name and not (ROOT / home / "__init__.py").exists():
            yield f"{home}: no __init__.py"
