"""Pure. What the workers run."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple


class Program(NamedTuple):
    """What the workers run, as it was launched."""

    kind: Literal["script", "module", "program", "function"]
    target: str  # path of a script, name of a module, program or function
    args: tuple[str, ...] = ()  # of a function those of the interpreter that runs it

    @property
    def title(self) -> str:
        """It with its arguments, without the interpreter."""
        if self.kind == "function":
            return self.target
        return " ".join(("-m",) * (self.kind == "module") + (self.target, *self.args))

    @property
    def name(self) -> str:
        """It without its folder, which may differ between hosts; nothing for a function."""
        if self.kind == "function":
            return ""
        module = f"-m {self.target}"
        return module if self.kind == "module" else self.target.rpartition("/")[2]

    @property
    def arguments_digest(self) -> str:
        """What tells whether two hosts run it with the same arguments, and does not show them."""
        return hashlib.sha256("\0".join(self.args).encode("utf-8", "replace")).hexdigest()[:16]

    def command(self, python: str) -> tuple[str, ...]:
        """Return a worker's argument vector; by ``-u`` one that is killed loses no last lines."""
        if self.kind == "function":
            return (python, "-P", "-u", "-m", *self.args)
        interpreter = {"script": (python, "-u"), "module": (python, "-u", "-m")}
        return (*interpreter.get(self.kind, ()), self.target, *self.args)
