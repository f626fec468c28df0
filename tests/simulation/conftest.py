"""The option that replays one world, and what only a soak runs."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=int,
        default=None,
        help="replay this world of tests/simulation and print what happens in it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``soak``, unless it was asked for."""
    if "soak" in config.getoption("-m"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
