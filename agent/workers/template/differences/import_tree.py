"""Pure. Which module imports which, and which modules can't be preloaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ROOTS_CHARACTERS_MAX = 64_000  # of all names; the supervisor hands them on in a variable


class ImportTree:
    """The imports of one process, noted as they begin and end.

    A module is left out together with those whose imports have led to it: they need it. So is
    what begins to import a module that an earlier process has left out.
    """

    def __init__(self, left_out: Iterable[str] = ()) -> None:
        self._left_out = {*left_out}
        self._left_out_before = self.left_out
        self._loading: list[str] = []
        self._importers: dict[str, str] = {}  # in the order in which imports ended
        self._reasons: dict[str, str] = {}  # by the module that is the cause

    @property
    def loading(self) -> tuple[str, ...]:
        """The modules that are being imported, the innermost last."""
        return tuple(self._loading)

    def begin(self, name: str) -> None:
        """Note that the import of a module begins."""
        if self.is_left_out(name):
            self._left_out.update(self._loading)
        self._loading.append(name)

    def end(self, *, is_done: bool) -> None:
        """Note that the innermost import has ended."""
        name = self._loading.pop()
        if is_done:
            self._importers[name] = self._loading[-1] if self._loading else ""

    def leave_out(self, chain: Sequence[str], reason: str) -> None:
        """Leave out the modules that were being imported when something happened."""
        self._left_out.update(chain)
        self._reasons.setdefault(chain[-1], reason)

    @property
    def reasons(self) -> str:
        """Why this process has left out modules: one sentence for each cause."""
        return "; ".join(self._reasons.values())

    @property
    def left_out(self) -> list[str]:
        """The modules that are left out, in alphabetical order; of a package, the package."""
        names = self._left_out
        return sorted(name for name in names if _packages_of(name).isdisjoint(names))

    @property
    def has_grown(self) -> bool:
        """Whether this process has imported what is to be left out."""
        return self.left_out != self._left_out_before

    def is_left_out(self, name: str) -> bool:
        """Whether a module is left out; a module is if one of its packages is."""
        return not self._left_out.isdisjoint({name, *_packages_of(name)})

    def roots(self) -> list[str]:
        """Return which modules to import in order to import all that are not left out.

        Those that were imported by name, or by a module that is left out.
        """
        roots, characters = [], 0
        for name, importer in self._importers.items():
            if not self.is_left_out(name) and (not importer or self.is_left_out(importer)):
                characters += len(name)
                if characters > ROOTS_CHARACTERS_MAX:
                    break
                roots.append(name)
        return roots


def _packages_of(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}
