"""Shell. Values that modules compute while they are imported, and that a fork must not share.

While modules are imported a few functions of the standard library are replaced by some that note
their results. A worker then finds its own process number, random identifiers and environment
where modules keep such values in their globals.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from .environment import after_imports
from .import_tree import ImportTree
from .sources import Sources

MAPPINGS = ("os", "_collections_abc", "collections.abc")  # whose code reads for others
IDENTIFIERS_MAX = 1_000  # that are noted; those beyond are the same in all workers
_WRITES = frozenset("wax+")  # in a mode of `open`
_INTERNAL = ("torch",)  # packages whose identifiers only tell objects of one process apart
_PACKAGE = __package__.partition(".")[0]  # ours, which is no business of modules
_FORMS: tuple[Callable[[Any], Any], ...] = (lambda value: value, str, lambda value: value.hex)


class ImportValues:
    """Notes values during imports, and renews them in a fork."""

    def __init__(self, tree: ImportTree, sources: Sources) -> None:
        self._tree = tree
        self._sources = sources
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._temporary: dict[str, tuple[str, ...]] = {}
        self._identifiers: list[tuple[Any, str, str]] = []  # which, function, module
        self._kept: list[tuple[dict[str, Any], str, Callable[[], Any]]] = []
        self._own: list[tuple[dict[str, Any], str]] = []
        self._copies: list[dict[str, str]] = []
        self._iterating: tuple[int, Any, int] | None = None
        self._is_iterated = False

    def begin(self) -> None:
        """Replace functions; each is called as before."""
        import builtins  # noqa: PLC0415
        import io  # noqa: PLC0415

        for module in (builtins, io):
            self._replace(module, "open", self._watch_open)
        self._replace(type(os.environ), "__iter__", self._watch_iteration)
        for name in ("tempfile", "uuid"):
            self.note_import(name)

    def note_import(self, name: str) -> None:
        """Replace functions of a module that has just been imported."""
        module = sys.modules.get(name)
        if name == "tempfile" and module is not None:
            self._replace(module, "mkdtemp", self._watch_temporary)
            self._replace(module, "_mkstemp_inner", self._watch_temporary)
        elif name == "uuid" and module is not None:
            for function in ("uuid1", "uuid4"):
                self._replace(module, function, self._watch_identifier)

    def end(self) -> None:
        """Put the functions back, where modules have taken them from as well."""
        originals = {id(new): old for _, _, old, new in self._replaced}
        for owner, name, old, _ in self._replaced:
            setattr(owner, name, old)
        for places, name, value in _globals():
            if id(value) in originals:
                places[name] = originals[id(value)]
        self._iterating = None
        self._replaced.clear()

    def _replace(self, owner: Any, name: str, watch: Callable[[Any], Any]) -> None:
        old = getattr(owner, name, None)
        if old is not None and not any(entry[:2] == (owner, name) for entry in self._replaced):
            new = watch(old)
            new.__name__, new.__qualname__ = old.__name__, old.__qualname__
            new.__module__, new.__doc__ = old.__module__, old.__doc__
            self._replaced.append((owner, name, old, new))
            setattr(owner, name, new)

    def _watch_open(self, function: Any) -> Any:
        def open(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:  # noqa: A001
            if isinstance(file, str | bytes | os.PathLike):
                with suppress(Exception):  # of what `open` itself will refuse
                    path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100
                    self._sources.note_data(path, is_written=not _WRITES.isdisjoint(mode))
            return function(file, mode, *more, **named)

        return open

    def _watch_temporary(self, function: Any) -> Any:
        def make(*given: Any, **named: Any) -> Any:
            made = function(*given, **named)
            path = made if isinstance(made, str) else made[1]
            if isinstance(path, str):
                self._temporary[path] = self._tree.loading
            return made

        return make

    def _watch_identifier(self, function: Any) -> Any:
        def draw(*given: Any, **named: Any) -> Any:
            drawn = function(*given, **named)
            if len(self._identifiers) < IDENTIFIERS_MAX:
                by = self._tree.loading[-1] if self._tree.loading else ""
                self._identifiers.append((drawn, function.__name__, by))
            return drawn

        return draw

    def _watch_iteration(self, function: Any) -> Any:
        def iterate(environment: Any) -> Iterator[str]:
            self._iterating, self._is_iterated = _place(sys._getframe(1)), True  # noqa: SLF001
            return function(environment)  # type: ignore[no-any-return]

        return iterate

    def is_copying(self, frame: Any) -> bool:
        """Whether this frame reads a variable because it goes through all of them."""
        return self._iterating is not None and self._iterating == _place(frame)

    def check(self) -> None:
        """Leave out modules that keep what workers would share and each would remove."""
        for path, chain in self._temporary.items():
            if chain and os.path.exists(path):  # noqa: PTH110
                what = f"made a temporary file or directory ({path})"
                why = f"{chain[-1]} {what} when it was imported, which all workers would share"
                self._tree.leave_out(chain, why)

    def remove_temporary(self) -> None:
        """Remove what only this process can remove; it ends without having started a worker."""
        from shutil import rmtree  # noqa: PLC0415 - seldom needed

        for path, chain in self._temporary.items():
            if chain and os.path.isdir(path):  # noqa: PTH112
                rmtree(path, ignore_errors=True)
            elif chain and os.path.exists(path):  # noqa: PTH110
                os.unlink(path)  # noqa: PTH108

    def find(self, before: Mapping[str, str]) -> list[str]:
        """Find the values that a fork is to renew; return sentences on those that it can't.

        ``before`` is the environment from before the imports.
        """
        forms = {
            form(drawn): (number, form)
            for number, (drawn, _, _) in enumerate(self._identifiers)
            for form in _FORMS
        }
        own, kept = os.getpid(), set()
        kinds = (str, *{type(drawn) for drawn, _, _ in self._identifiers})
        for place, name, value in _globals():
            if type(value) is int and value == own and "pid" in name.lower():
                self._own.append((place, name))
            elif type(value) in kinds and value in forms:
                number, form = forms[value]
                kept.add(number)
                self._kept.append((place, name, self._renewal(number, form)))
        if self._is_iterated:
            self._copies = _copies_of(before)
        by = {
            module: None
            for number, (_, _, module) in enumerate(self._identifiers)
            if number not in kept and module.partition(".")[0] not in _INTERNAL
        }
        return [
            f"{module} drew a UUID when it was imported: it is the same in all workers"
            for module in by
        ]

    def _renewal(self, number: int, form: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: form(self._identifiers[number][0])

    def renew(self, before: Mapping[str, str], given: Mapping[str, str]) -> None:
        """Give a fork its own values; ``given`` is its environment before any import."""
        for place, name in self._own:
            place[name] = os.getpid()
        if self._kept:
            uuid = sys.modules["uuid"]
            self._identifiers = [
                (getattr(uuid, how)(), how, by) for _, how, by in self._identifiers
            ]
            for place, name, value in self._kept:
                place[name] = value()
        for copy in self._copies:
            updated = after_imports(before, copy, given)
            copy.clear()
            copy.update(updated)


def _place(frame: Any) -> tuple[int, Any, int]:
    """Return where code is, behind what goes through a mapping on behalf of it."""
    while frame.f_back is not None and frame.f_globals.get("__name__") in MAPPINGS:
        frame = frame.f_back
    return id(frame), frame.f_code, frame.f_lasti


def namespace(module: Any) -> dict[str, Any]:
    """Return the globals of a module, without loading one that is loaded when it is used."""
    is_module = issubclass(type(module), ModuleType)
    contents: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__") if is_module else {}
    return contents


def _globals() -> Iterator[tuple[dict[str, Any], str, Any]]:
    for module in [*sys.modules.values()]:
        place = namespace(module)
        if not str(place.get("__name__")).startswith(f"{_PACKAGE}."):
            for name, value in [*place.items()]:
                if type(name) is str:
                    yield place, name, value


def _copies_of(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Find copies of the whole environment, of which modules may have changed some."""
    now = {name: value for name, value in os.environ.items() if environment.get(name) == value}
    seen, copies = {id(now), id(environment)}, []
    # The collector has no list of dictionaries of strings; but of all that may refer to one.
    for candidate in gc.get_referents(*gc.get_objects()):
        if type(candidate) is dict and len(candidate) >= len(now) > 0 and id(candidate) not in seen:
            seen.add(id(candidate))
            with suppress(Exception):  # comparisons of code that is not ours
                if all(candidate.get(name) == value for name, value in now.items()):
                    copies.append(candidate)
    return copies
