"""Shell. Names of runs that were given none."""

import re
import secrets
from pathlib import PurePath

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that is taken for another one
_RANDOM_CHARACTERS, _PROGRAM_CHARACTERS_MAX = 6, 24


def make_up_run_id(program: str) -> str:
    """Return the name of a program with random characters, e.g. "train-k7f2qd".

    Two jobs may have the same one by chance: the coordinator refuses the second while the first
    lives.
    """
    name = PurePath(program).name.removesuffix(".py")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:_PROGRAM_CHARACTERS_MAX]
    random = "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM_CHARACTERS))
    return f"{name or 'run'}-{random}"
