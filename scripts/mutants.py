"""Change the cores in one place at a time, and count the changes that the quick tests notice.

A change that no test notices makes no difference, or breaks a promise that no test checks. The seed
ranks mutants by names that have no file or line in them, so that two commits have nearly the same
mutants with one seed.

Pytest collects the tests once. A child process runs all of them and records which functions each
test calls. Then every mutant is a child of its own: it gives the function its changed code, runs
the tests that call that function, the quickest first, and ends at the first failure. No file
changes.

    python scripts/mutants.py COUNT SEED
"""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import IO, Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "coordinator/core",
    "coordinator/observe",
    "agent/core",
    "worker_sdk/inprocess",
)
QUICK_TESTS = ("tests/unit", "tests/scenarios", "tests/property")
# Tests with many hosts, of memory and of imports take too long here.
QUICK = "not (any_size or number_of_agents or silent_rack or no_more_memory or loads_nothing)"
PYTEST = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what this script imports
# How long the tests of a mutant may take: so much, and so many times as long as without it.
LIMIT_S, LIMIT_FACTOR = 10.0, 3.0

LOOSER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.GtE, ast.Gt: ast.LtE}
OPPOSITE |= {ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
OPPOSITE |= {other: one for one, other in OPPOSITE.items()}
SWAPPED = {"min": "max", "max": "min"}
# Parts of f-strings have no place of their own in 3.11, and asserts are checks themselves.
LEFT_OUT = (ast.JoinedStr, ast.Assert)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, int]
"""A function: its file, and the line where its code begins."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file. ``lines``: those of the outermost function around it."""

    name: str
    path: Path
    line: int
    lines: range
    changed: bytes


def changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield parts of a node, and what each may be replaced by."""
    match node:
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                other = LOOSER.get(type(op)) or OPPOSITE[type(op)]
                yield node, ast.Compare(left, [*ops[:at], other(), *ops[at + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.If(test) | ast.IfExp(test) | ast.While(test) | ast.comprehension(ifs=[test]):
            yield test, negated(test)
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            yield from ((node, ast.Constant(value + by)) for by in (1, -1) if value + by != value)
        case ast.Call(ast.Name(id=name), args, keywords) if name in SWAPPED:
            yield node, ast.Call(ast.Name(SWAPPED[name]), args, keywords)
        case (
            ast.Expr(ast.Call()) | ast.AugAssign() | ast.Assign([ast.Attribute() | ast.Subscript()])
        ):
            yield node, ast.Pass()


def negated(test: ast.expr) -> ast.expr:
    """Return the opposite of a condition, as one would write it."""
    match test:
        case ast.Compare(left, [op], comparators):
            return ast.Compare(left, [OPPOSITE[type(op)]()], comparators)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
    return ast.UnaryOp(ast.Not(), test)


def places(
    node: ast.AST, scope: str = "", lines: range = range(0)
) -> Iterator[tuple[str, range, ast.AST]]:
    """Yield each node in the body of a function, with the function's qualified name."""
    if isinstance(node, LEFT_OUT) or scope.endswith("check_invariants()"):
        return
    children = ast.iter_child_nodes(node)
    if lines:  # numbers elsewhere are limits, which tests know by name
        yield scope, lines, node
    if isinstance(node, ast.ClassDef):
        scope += f"{node.name}."
    elif isinstance(node, Function):
        scope += f"{node.name}()"
        first = min(part.lineno for part in (node, *node.decorator_list))
        lines = lines or range(first, (node.end_lineno or 0) + 1)
        children = iter(node.body)  # defaults and decorators are computed once, at the import
    for child in children:
        yield from places(child, scope, lines)


def mutants_of(package: str, path: Path) -> Iterator[Mutant]:
    """Yield every change of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    done = {source}
    for scope, lines, node in places(ast.parse(source)):
        for old, new in changes(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            changed = source[:start] + text.encode() + source[end:]
            # An attribute that is never set fails anywhere.
            if changed not in done and not (text == "pass" and scope.endswith("__init__()")):
                done.add(changed)
                name = f"{package} {scope}: {ast.unparse(old)} -> {ast.unparse(new)}"
                yield Mutant(name, path, old.lineno, lines, changed)


def choose_mutants(count: int, seed: str) -> list[Mutant]:
    """Return ``count`` mutants; which ones depends on the seed and their names alone."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[bytes, Mutant]] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for mutant in mutants_of(package, path):
                seen[mutant.name] += 1  # a function may have the same change twice
                key = f"{seed} {seen[mutant.name]} {mutant.name}"
                ranked.append((hashlib.sha256(key.encode()).digest(), mutant))
    return [mutant for _, mutant in sorted(ranked, key=itemgetter(0))[:count]]


class Calls:
    """Records which functions of the mutated packages are called."""

    def __init__(self) -> None:
        self.places: set[Place] = set()
        self._paths: dict[str, str] = {}  # by the name that code has for its file

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> None:
        """Take note of a call, as ``sys.settrace`` wants it."""
        code = frame.f_code
        if (path := self._paths.get(code.co_filename)) is None:
            path = os.path.realpath(code.co_filename)
            is_ours = any(path.startswith(f"{ROOT}/{package}/") for package in PACKAGES)
            self._paths[code.co_filename] = path = path if is_ours else ""
        if path:
            self.places.add((path, code.co_firstlineno))


class Failures:
    """Counts the tests that fail."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of the end of a test's setup, call or teardown."""
        self.count += report.failed


class Mutants:
    """Runs the tests that pytest has collected, for one mutant after the other."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self._mutants = mutants
        self._failures = Failures()
        self._items: list[pytest.Item] = []
        self._seconds: list[float] = []  # of each test
        self._callers: dict[Place, set[int]] = defaultdict(set)  # numbers of tests
        self._functions: dict[Place, list[FunctionType]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Have no failure of Hypothesis made smaller or kept: one is enough."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        profile = hypothesis.settings(database=None, phases=phases, deadline=None)
        hypothesis.settings.register_profile("mutants", profile)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run tests in child processes instead of this one."""
        if session.testsfailed:
            return None  # tests cannot be collected, which pytest says
        session.config.pluginmanager.register(self._failures)
        session.config.pluginmanager.unregister(name="terminalreporter")
        self._items = session.items
        self._find_functions()
        with tempfile.TemporaryFile() as file:
            in_child(partial(self._record_calls, file))
            file.seek(0)
            calls: list[tuple[float, bool, set[Place]]] = pickle.load(file)  # noqa: S301 - own
        for number, (seconds, has_failed, called) in enumerate(calls):
            self._seconds.append(seconds)
            if has_failed:
                say(f"left out, fails without any change: {session.items[number].nodeid}")
                continue
            for place in called:
                self._callers[place].add(number)
        self._try_all()
        return True

    def _try_all(self) -> None:
        survivors, began = 0, time.monotonic()
        for mutant in self._mutants:
            if self._survives(mutant):
                survivors += 1
                say(f"survived: {mutant.path.relative_to(ROOT)}:{mutant.line} {mutant.name}")
        count, seconds = len(self._mutants), time.monotonic() - began
        say(f"{count - survivors} of {count} mutants killed, {seconds / count:.1f} s for one")

    def _survives(self, mutant: Mutant) -> bool:
        path = str(mutant.path)
        callers = set[int]().union(*(self._callers[path, line] for line in mutant.lines))
        numbers = sorted(callers, key=self._seconds.__getitem__)
        limit_s = LIMIT_S + LIMIT_FACTOR * sum(self._seconds[number] for number in numbers)
        return in_child(partial(self._run_changed, mutant, numbers), limit_s)

    def _find_functions(self) -> None:
        """Find all functions by where their code begins."""
        gc.unfreeze()
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                code = thing.__code__
                place = os.path.realpath(code.co_filename), code.co_firstlineno
                self._functions[place].append(thing)
        gc.freeze()

    # In a child process.

    def _record_calls(self, file: IO[bytes]) -> bool:
        """Run all tests, and write how long each takes, whether it fails and what it calls."""
        record: list[tuple[float, bool, set[Place]]] = []
        for number in range(len(self._items)):
            calls, began, failures = Calls(), time.monotonic(), self._failures.count
            sys.settrace(calls)
            threading.settrace(calls)
            self._run(number, number + 1 if number + 1 < len(self._items) else None)
            sys.settrace(None)
            record.append((time.monotonic() - began, self._failures.count > failures, calls.places))
        pickle.dump(record, file)
        file.flush()
        return True

    def _run_changed(self, mutant: Mutant, numbers: list[int]) -> bool:
        """Change one function, and run tests; return whether all of them pass."""
        place = str(mutant.path), mutant.lines.start
        functions = self._functions[place]
        if numbers and not functions:
            msg = f"no such function, though tests call it: {place}"
            raise LookupError(msg)
        for function in functions:
            code = function.__code__
            whole = compile(mutant.changed, code.co_filename, "exec", dont_inherit=True)
            function.__code__ = next(
                changed
                for changed in codes(whole)
                if changed.co_firstlineno == code.co_firstlineno
                and changed.co_qualname == code.co_qualname
            )
        for number, next_number in zip(numbers, [*numbers[1:], None], strict=True):
            self._run(number, next_number)
            if self._failures.count:
                return False
        return True

    def _run(self, number: int, next_number: int | None) -> None:
        item = self._items[number]
        next_item = None if next_number is None else self._items[next_number]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield all code inside of other code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes(constant)


def in_child(work: Callable[[], bool], limit_s: float | None = None) -> bool:
    """Do this in a child process; return what it returns, or ``False`` if it takes too long."""
    if (child := os.fork()) == 0:
        os.setsid()
        is_success = False
        try:
            is_success = work()
        finally:
            os._exit(not is_success)
    ended = os.pidfd_open(child)
    is_late = not select.select([ended], [], [], limit_s)[0]
    os.close(ended)
    if is_late:
        os.killpg(child, signal.SIGKILL)  # with what its tests have started
    _, status = os.waitpid(child, 0)
    return status == 0


def say(line: str) -> None:
    """Print although pytest captures what is printed."""
    print(line, file=sys.__stderr__, flush=True)


def main() -> None:
    """Run the tests for each mutant; print who survived, and the score."""
    count, seed = sys.argv[1:]
    os.chdir(ROOT)
    sys.path[0] = str(ROOT)  # as for `python -m pytest`
    os.environ["DRUMBEAT_ORDERS"] = "10"
    mutants = choose_mutants(int(count), seed)
    sys.exit(pytest.main([*PYTEST, "-k", QUICK, *QUICK_TESTS], plugins=[Mutants(mutants)]))


if __name__ == "__main__":
    main()
