"""Print the floor of every run-time dependency as a constraint, for an install of the oldest.

python scripts/floors.py pyproject.toml > constraints.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<floor>[0-9.]+)(,<[0-9.]+)?")


def constraints(pyproject: str) -> list[str]:
    """Return ``name==floor`` for each dependency, those of a journal on etcd among them."""
    project = tomllib.loads(pyproject)["project"]
    dependencies = [*project["dependencies"], *project["optional-dependencies"]["etcd"]]
    found = [REQUIREMENT.fullmatch(dependency) for dependency in dependencies]
    assert all(found), f"not all of the form name>=floor, with a ceiling at most: {dependencies}"
    return [f"{match['name']}=={match['floor']}" for match in found if match]


if __name__ == "__main__":
    print("\n".join(constraints(Path(sys.argv[1]).read_text())))
