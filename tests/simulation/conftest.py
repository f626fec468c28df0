"""The options that replay one world."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="print what happens in this world")
    parser.addoption("--world", default="alone", help="which kind of world --seed is of")
