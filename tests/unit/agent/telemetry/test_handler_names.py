"""Handlers are found by name: ours, and those of installed packages."""

from pathlib import Path

import pytest

from drumbeat.agent.errors import UnknownEventHandler
from drumbeat.agent.telemetry import handlers
from drumbeat.agent.telemetry.handlers import ConsoleHandler, JsonLinesHandler, make_handler


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers the handlers "mine" and "missing"."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[drumbeat.event_handlers]\n"
        "mine = drumbeat.agent.telemetry.handlers:ConsoleHandler\n"
        "missing = no_such_module:Handler\n"
        "console = no_such_module:Handler\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_ours_need_no_package(tmp_path: Path) -> None:
    for name in handlers.BUILT_IN:
        handlers.check_name(name)
    assert type(make_handler("console", None)) is ConsoleHandler
    handler = make_handler("jsonl", str(tmp_path / "e"))
    assert isinstance(handler, JsonLinesHandler)
    handler.close()


@pytest.mark.usefixtures("installed")
def test_a_packages_handler_is_found_and_ours_cannot_be_replaced() -> None:
    handlers.check_name("mine")
    assert isinstance(make_handler("mine", None), ConsoleHandler)
    assert isinstance(make_handler("console", None), ConsoleHandler)


@pytest.mark.usefixtures("installed")
def test_a_handler_is_loaded_only_when_it_is_made() -> None:
    handlers.check_name("missing")
    with pytest.raises(ModuleNotFoundError):
        make_handler("missing", None)


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(UnknownEventHandler) as caught:
        handlers.check_name("other")
    assert caught.value.args[1] == ("null", "console", "jsonl", "mine", "missing")
    with pytest.raises(UnknownEventHandler):
        make_handler("other", None)
