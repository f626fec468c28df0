"""The options that replay one world."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=int,
        default=None,
        help="replay this world of tests/simulation and print what happens in it",
    )
    parser.addoption(
        "--failover-seed",
        type=int,
        default=None,
        help="the same, of a world with several coordinators",
    )
