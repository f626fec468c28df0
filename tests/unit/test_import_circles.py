"""No module of ours imports, by way of others, itself."""

from __future__ import annotations

from tests.support.layering import PACKAGES, Module, circle_of, modules_below


def test_modules_import_each_other_one_way() -> None:
    assert circle_of(modules_below(PACKAGES)) == []


def test_a_circle_is_found() -> None:
    there = Module.parse("agent/a.py", "from agent import b")
    back = Module.parse("agent/b.py", "def f():\n    from agent.a import x")
    assert set(circle_of([there, back])) == {"agent.a", "agent.b"}
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from agent.a import x"
    assert circle_of([there, Module.parse("agent/b.py", typed)]) == []
