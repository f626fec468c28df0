"""Shell. Random numbers of a fork: its own, as in a new process, unless a program seeded them."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

_REGENERATIONS_MAX = 1_000  # of 624 numbers each; who draws more while importing counts as seeding
_WORDS = 624  # of the state of a Mersenne Twister, which Python and numpy have


def _python_words() -> tuple[int, ...]:
    return tuple(sys.modules["random"].getstate()[1][:_WORDS])


def _numpy_words() -> tuple[int, ...]:
    name, words, *_ = sys.modules["numpy.random"].get_state()
    return tuple(words.tolist()) if name == "MT19937" else ()


def _torch_seed() -> tuple[int, ...]:
    return (sys.modules["torch"].default_generator.initial_seed(),)


_READERS = {"random": _python_words, "numpy.random": _numpy_words, "torch": _torch_seed}


class RandomStates:
    """The generators that a program finds without making one: Python's, numpy's and torch's.

    A new process seeds each of them with numbers from the system. A fork does so as well, but not
    where an import or a script for preloading has seeded a generator: then all have that state.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, ...]] = {}
        self._seeded: dict[str, Any] = {}
        for module in _READERS:
            if module in sys.modules:
                self.note_import(module)

    def note_import(self, module: str) -> None:
        """Note how a generator begins, right after the import that makes it."""
        if module in _READERS and module in sys.modules and module not in self._first:
            with suppress(Exception):  # another module of that name, or another version
                self._first[module] = _READERS[module]()

    def keep_seeded(self) -> None:
        """Note which generators were seeded, after all imports."""
        for module, first in self._first.items():
            now = _READERS[module]()
            if now != first and not (module != "torch" and _is_drawn_from(first, now)):
                # Python seeds its own in each fork, whatever it was.
                state = sys.modules["random"].getstate() if module == "random" else None
                self._seeded[module] = state

    def begin_as_new(self) -> None:
        """Seed a fork's generators from the system, and restore what was seeded."""
        if "random" in self._seeded:
            sys.modules["random"].setstate(self._seeded["random"])
        if "numpy.random" in self._first and "numpy.random" not in self._seeded:
            sys.modules["numpy.random"].seed()
        if "torch" in self._first and "torch" not in self._seeded:
            # That of the CPU alone; a device's generator is made when a worker first uses it.
            sys.modules["torch"].default_generator.seed()


def _is_drawn_from(first: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Whether a Mersenne Twister comes from one state to the other by drawing numbers."""
    if len(first) != _WORDS:
        return False
    generator = sys.modules["random"].Random()
    generator.setstate((3, (*first, _WORDS), None))
    for _ in range(_REGENERATIONS_MAX):
        generator.getrandbits(32 * _WORDS)
        if generator.getstate()[1][:_WORDS] == now:
            return True
    return False
