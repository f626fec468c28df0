"""Change the cores in one place at a time, and count the changes that the quick tests notice.

A change that no test notices makes no difference, or breaks a promise that nobody checks. Changes
are made in a copy of the tree. The seed ranks mutants by names that have no file or line in them,
so that two commits have nearly the same mutants with one seed.

    python scripts/mutants.py COUNT SEED
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from operator import itemgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordinator/core", "agent/core", "agent/watchdog/core", "worker_sdk/inprocess")
QUICK_TESTS = ("tests/unit", "tests/scenarios", "tests/property")
# Tests with many hosts, of memory and of imports take too long here.
QUICK = "not (any_size or number_of_agents or silent_rack or no_more_memory or loads_nothing)"
PYTEST = ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
NOT_COPIED = (".*", "__pycache__", "build", "dist", "*.egg-info", "results")

LOOSER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.GtE, ast.Gt: ast.LtE}
OPPOSITE |= {ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
OPPOSITE |= {other: one for one, other in OPPOSITE.items()}
SWAPPED = {"min": "max", "max": "min"}
# Parts of f-strings have no place of their own in 3.11, and asserts are checks themselves.
LEFT_OUT = (ast.JoinedStr, ast.Assert)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    name: str
    package: str
    path: Path
    line: int
    source: bytes
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


def places(node: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each node inside of a function, with the function's qualified name."""
    if isinstance(node, LEFT_OUT) or scope.endswith("check_invariants()"):
        return
    if isinstance(node, ast.ClassDef):
        scope += f"{node.name}."
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        scope += f"{node.name}()"
    if ")" in scope:  # numbers elsewhere are limits, which tests know by name
        yield scope, node
    for child in ast.iter_child_nodes(node):
        yield from places(child, scope)


def mutants_of(package: str, path: Path) -> Iterator[Mutant]:
    """Yield every change of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    done = {source}
    for scope, node in places(ast.parse(source)):
        for old, new in changes(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            changed = source[:start] + text.encode() + source[end:]
            # An attribute that is never set fails anywhere.
            if changed not in done and not (text == "pass" and scope.endswith("__init__()")):
                done.add(changed)
                name = f"{package} {scope}: {ast.unparse(old)} -> {ast.unparse(new)}"
                yield Mutant(name, package, path.relative_to(ROOT), old.lineno, source, changed)


def chosen(count: int, seed: str) -> list[Mutant]:
    """Return ``count`` mutants; which ones depends on the seed and their names alone."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[bytes, Mutant]] = []
    for package, path in [
        (each, path) for each in PACKAGES for path in sorted((ROOT / each).rglob("*.py"))
    ]:
        for mutant in mutants_of(package, path):
            seen[mutant.name] += 1  # a function may have the same change twice
            key = f"{seed} {seen[mutant.name]} {mutant.name}"
            ranked.append((hashlib.sha256(key.encode()).digest(), mutant))
    return [mutant for _, mutant in sorted(ranked, key=itemgetter(0))[:count]]


@cache
def modules_of(test: Path) -> frozenset[str]:
    """Return the names that a test imports, by itself or by way of what supports it."""
    names: set[str] = set()
    files = [test]
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}", *(f"{node.module}.{each.name}" for each in node.names)}
        supports = (ROOT / f"{name.replace('.', '/')}.py" for name in names if "tests." in name)
        files += [each for each in supports if each.exists() and each not in files]
    return frozenset(names)


def files_for(package: str, path: Path = ROOT) -> list[str]:
    """Return the quick tests that import a package; first those that import the file itself."""
    prefix, module = package.replace("/", "."), ".".join(path.with_suffix("").parts)
    tests = [test for folder in QUICK_TESTS for test in (ROOT / folder).rglob("test_*.py")]
    found = [each for each in tests if any(name.startswith(prefix) for name in modules_of(each))]
    found.sort(key=lambda each: ("property" in each.parts, module not in modules_of(each), each))
    return [str(each.relative_to(ROOT)) for each in found]


def passes(tree: Path, tests: list[str], limit_s: float = 0) -> bool:
    """Run tests in a copy of the tree; those that take too long do not pass."""
    env = {**os.environ, "PYTHONPATH": f"{tree}/src", "DRUMBEAT_ORDERS": "10"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    # `timeout` ends the processes of the tests, too.
    command = ["timeout", "--signal=KILL", str(limit_s), sys.executable, *PYTEST, "-k", QUICK]
    quiet = subprocess.DEVNULL
    return subprocess.call([*command, *tests], cwd=tree, env=env, stdout=quiet, stderr=quiet) == 0


def put(source: bytes, file: Path) -> None:
    """Write a file of the copy; its compiled form would be known by second and size alone."""
    file.write_bytes(source)
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


def main() -> None:
    """Run the tests for each mutant; print who survived, and the score."""
    count, seed = sys.argv[1:]
    picked = chosen(int(count), seed)
    limits_s: dict[str, float] = {}
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        for package in dict.fromkeys(each.package for each in picked):
            began = time.monotonic()
            if not passes(tree, files_for(package)):
                sys.exit(f"the tests of {package} fail without any change")
            limits_s[package] = 10 + 3 * (time.monotonic() - began)
        for mutant in picked:
            put(mutant.changed, tree / mutant.path)
            tests = files_for(mutant.package, mutant.path)
            if passes(tree, tests, limits_s[mutant.package]):
                survivors += 1
                print(f"survived: {mutant.path}:{mutant.line} {mutant.name}", flush=True)
            put(mutant.source, tree / mutant.path)
    print(f"{len(picked) - survivors} of {len(picked)} mutants killed, seed {seed}")


if __name__ == "__main__":
    main()
