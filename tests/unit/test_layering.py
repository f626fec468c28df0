"""Our own code obeys the rules of layering, and the checks of them can fail."""

import gc
from collections.abc import Iterator

import pytest

from tests.support import layering
from tests.support.layering import Module

PURE_HERE = frozenset({"drumbeat.agent.core", "drumbeat.text.violation"})  # in the samples


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """Syntax trees have no cycles, and looking for some takes as long as making the trees."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("_no_collections")
def test_our_own_code_obeys_every_rule() -> None:
    """One test: to parse all of it takes longer than to check it."""
    ours = list(layering.modules_below(layering.FOLDERS))
    others = list(layering.modules_below(layering.OTHER_CODE))
    pure = frozenset(module.name for module in ours if module.mark == "Pure")
    # Without these, a wrong path would let everything else pass.
    assert {module.package for module in ours} == set(layering.PACKAGES)
    assert "worker_sdk.context" in pure
    found = [
        *(line for module in ours for line in layering.check_mark(module)),
        *(line for module in ours for line in layering.check_purity(module, pure)),
        *(line for module in ours for line in layering.check_direction(module)),
        *(line for module in ours for line in layering.check_environment(module)),
        *(line for module in ours for line in layering.check_values(module)),
        *(
            line
            for modules in (ours, others)
            for each in modules
            for line in layering.check_size(each)
        ),
        *(line for each in [*ours, *others] for line in layering.check_names(each)),
        *layering.check_circles(ours),
        *layering.check_shipping(ours),
    ]
    assert found == []


def test_the_proto_folder_holds_protos_only() -> None:
    files = [path for path in (layering.ROOT / "proto").rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix != ".proto"] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("agent/a.py", "x = 1"),
        ("agent/a.py", '"""Purely."""'),
        ("agent/__init__.py", '"""Gathers, and acts."""\nx = open("f")'),
    ],
)
def test_a_module_without_a_mark_is_found(path: str, text: str) -> None:
    assert len(list(layering.check_mark(Module.parse(path, text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("agent/a.py", '"""Pure. Computes."""'),
        ("agent/a.py", '"""Shell. Acts."""\nx = 1'),
        ("agent/__init__.py", '"""Gathers."""\nfrom agent.a import b\n__all__ = ["b"]'),
    ],
)
def test_a_module_with_a_mark_and_a_bare_package_pass(path: str, text: str) -> None:
    assert list(layering.check_mark(Module.parse(path, text))) == []


@pytest.mark.parametrize(
    "body",
    [
        "import time",
        "import os.path",
        "import asyncio as a",
        "from random import Random",
        "from drumbeat.v1 import run_pb2",
        "from drumbeat.agent import session",
        "from . import session",
        "from .session import Session",
        "from signal import SIGTERM, signal",
        "def f():\n    import logging",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import grpc",
        "print(1)",
        "def f(path):\n    return open(path)",
        "def f(os):\n    return os.getpid()",
    ],
)
def test_a_pure_module_that_acts_is_found(body: str) -> None:
    module = Module.parse("agent/a.py", f'"""Pure. Not so."""\n{body}')
    assert list(layering.check_purity(module, PURE_HERE))


@pytest.mark.parametrize(
    "body",
    [
        "from collections.abc import Mapping\nfrom dataclasses import dataclass",
        "from drumbeat.agent import core",
        "from drumbeat.agent.core import Core",
        "from .core import Core",
        "from drumbeat.text.violation import Violation",
        "from signal import Signals",
        "if TYPE_CHECKING:\n    import random\ndef f(rng: random.Random): return rng.random()",
        "def f(gate): return gate.open()",
    ],
)
def test_a_pure_module_that_computes_passes(body: str) -> None:
    module = Module.parse("agent/a.py", f'"""Pure. Indeed."""\n{body}')
    assert list(layering.check_purity(module, PURE_HERE)) == []


FAILURES = "drumbeat.agent.failures.process_failure"
HAND_ON = f"def __getattr__(name):\n    from {FAILURES} import ProcessFailure\n"


def test_a_pure_module_may_hand_on_what_it_does_not_load() -> None:
    module = Module.parse("agent/errors.py", f'"""Pure. Indeed."""\n{HAND_ON}')
    assert list(layering.check_purity(module, PURE_HERE)) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("agent/core/agent.py", HAND_ON),
        ("agent/errors.py", HAND_ON.replace("__getattr__", "load")),
        ("agent/errors.py", HAND_ON.replace("process_failure", "session")),
        ("agent/errors.py", f"from {FAILURES} import ProcessFailure"),
    ],
)
def test_a_pure_module_that_loads_what_acts_is_found(path: str, body: str) -> None:
    module = Module.parse(path, f'"""Pure. Not so."""\n{body}')
    assert list(layering.check_purity(module, PURE_HERE))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("agent/a.py", "from drumbeat.coordinator.ranks import x"),
        ("agent/a.py", "import drumbeat.standalone"),
        ("agent/sub/a.py", "def f():\n    import drumbeat.coordinator"),
        ("coordinator/a.py", "import drumbeat.agent.core"),
        ("coordinator/web/a.py", "from drumbeat.coordinator.command import looking"),
        ("coordinator/core/a.py", "from drumbeat.coordinator.command.client import Client"),
        ("coordinator/a.py", "from worker_sdk import context"),
        ("worker_sdk/a.py", "if TYPE_CHECKING:\n    from drumbeat.agent import core"),
        ("worker_sdk/a.py", "import psutil"),
        ("src/drumbeat/a.py", "import worker_sdk"),
        ("src/drumbeat/a.py", "from drumbeat.agent import core"),
        ("worker_sdk/a.py", "from drumbeat.command import logs"),
        ("worker_sdk/a.py", "from drumbeat.command.logs import configure"),
        ("src/drumbeat/standalone.py", "import torch"),
        ("worker_sdk/a.py", "from torch.distributed import run"),
        ("worker_sdk/a.py", "from worker_sdk import torch"),
        ("agent/a.py", "import worker_sdk.torch"),
        ("agent/a.py", "from drumbeat.client import Client"),
        ("src/drumbeat/client/a.py", "import torch"),
        ("src/drumbeat/client/a.py", "import drumbeat.coordinator"),
        ("src/drumbeat/a.py", "from drumbeat.client import Client"),
        ("worker_sdk/torch.py", "import psutil"),
    ],
)
def test_an_import_the_wrong_way_is_found(path: str, text: str) -> None:
    assert list(layering.check_direction(Module.parse(path, text)))


def test_an_import_by_the_name_of_a_folder_is_found() -> None:
    for text in ("import agent.a", "from coordinator import core"):
        assert len(list(layering.check_names(Module.parse("tests/a.py", text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("agent/__main__.py", "import drumbeat.standalone"),
        ("coordinator/command/a.py", "from drumbeat.coordinator.command.client import Client"),
        ("agent/a.py", "from worker_sdk import context\nimport psutil"),
        ("src/drumbeat/standalone.py", "import drumbeat.agent.a, drumbeat.coordinator.b"),
        ("worker_sdk/torch.py", "from torch.distributed.elastic import timer"),
        ("worker_sdk/a.py", "import grpc, socket\nfrom drumbeat.worker.v1 import worker_pb2"),
    ],
)
def test_an_import_the_right_way_passes(path: str, text: str) -> None:
    assert list(layering.check_direction(Module.parse(path, text))) == []


@pytest.mark.parametrize("text", ["os.environ['A']", "os.getenv('A')", "from os import environ"])
def test_reading_the_environment_is_found_outside_its_few_places(text: str) -> None:
    assert list(layering.check_environment(Module.parse("agent/a.py", text)))
    assert not list(layering.check_environment(Module.parse("agent/settings/config.py", text)))
    assert not list(layering.check_environment(Module.parse("worker_sdk/runtime.py", text)))


VALUE = "@dataclass(frozen=True, slots=True)\nclass TokenCreated:\n    a: int"
DEFAULT = "class A(Struct, frozen=True):\n    a: dict = field(default_factory=dict)"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("agent/core/a.py", VALUE),
        ("agent/a.py", f"from dataclasses import field\n{DEFAULT}"),
        ("agent/a.py", DEFAULT.replace("field", "dataclasses.field")),
    ],
)
def test_a_value_of_the_wrong_kind_is_found(path: str, text: str) -> None:
    assert len(list(layering.check_values(Module.parse(path, text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("coordinator/core/events.py", VALUE),
        ("agent/a.py", VALUE),
        ("agent/core/a.py", f"from msgspec import Struct, field\n{DEFAULT}"),
        ("agent/core/a.py", "@dataclass(slots=True)\nclass State:\n    a: int"),
    ],
)
def test_values_of_the_right_kind_pass(path: str, text: str) -> None:
    assert list(layering.check_values(Module.parse(path, text))) == []


def test_a_function_that_is_too_long_is_found() -> None:
    long_function = Module.parse("agent/a.py", "def f():\n" + "    pass\n" * 60)
    longest = Module.parse("agent/a.py", "def f():\n" + "    pass\n" * 59)
    assert list(layering.check_size(long_function)) == [
        "agent/a.py:1: f has 61 lines, more than 60"
    ]
    assert list(layering.check_size(longest)) == []


@pytest.mark.parametrize(
    "back",
    [
        "import drumbeat.agent.a",
        "from drumbeat.agent import a",
        "def f():\n    from drumbeat.agent.a import x",
    ],
)
def test_a_circle_is_found_wherever_the_import_stands(back: str) -> None:
    modules = [
        Module.parse("agent/__init__.py", "from drumbeat.agent.a import x"),
        Module.parse("agent/a.py", "from drumbeat.agent.b import y"),
        Module.parse("agent/b.py", back),
    ]
    assert list(layering.check_circles(modules)) in (
        ["circle: drumbeat.agent.a -> drumbeat.agent.b -> drumbeat.agent.a"],
        ["circle: drumbeat.agent.b -> drumbeat.agent.a -> drumbeat.agent.b"],
    )
    assert list(layering.check_circles(modules[:2])) == []
