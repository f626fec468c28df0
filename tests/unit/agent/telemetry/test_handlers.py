"""The handlers that come with drumbeat."""

import json
import os
import threading
from pathlib import Path

import pytest

from drumbeat.agent.telemetry import Event, EventSource, Metric
from drumbeat.agent.telemetry.handlers import ConsoleHandler, JsonLinesHandler

EVENT = Event(name="e", source=EventSource.WORKER, timestamp=5, metadata={"a": "ü\n", "b": None})
METRIC = Metric(name="m", value=1.5, timestamp=6, metadata={"run_id": "r"})
EVENT_JSON = {
    "kind": "event", "name": "e", "source": "WORKER", "timestamp": 5,
    "metadata": {"a": "ü\n", "b": None},
}  # fmt: skip
METRIC_JSON = {
    "kind": "metric", "name": "m", "value": 1.5, "timestamp": 6, "metadata": {"run_id": "r"},
}  # fmt: skip


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_console_gets_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    handler = ConsoleHandler()
    handler.handle(EVENT)
    handler.put(METRIC)
    handler.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line) for line in captured.err.splitlines()] == [EVENT_JSON, METRIC_JSON]


def test_a_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for _ in range(2):
        handler = JsonLinesHandler(str(path))
        handler.handle(EVENT)
        handler.put(METRIC)
        handler.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert lines(path) == [EVENT_JSON, METRIC_JSON] * 2


def test_a_full_file_is_renamed_and_only_one_old_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "events"
    size = len(METRIC.to_json()) + 1
    handler = JsonLinesHandler(str(path), bytes_max=3 * size)
    for _ in range(8):
        handler.put(METRIC)
    handler.close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["events", "events.1"]
    assert lines(path) == [METRIC_JSON] * 2
    assert lines(tmp_path / "events.1") == [METRIC_JSON] * 3


def test_a_line_longer_than_the_file_may_be_is_written_alone(tmp_path: Path) -> None:
    path = tmp_path / "events"
    handler = JsonLinesHandler(str(path), bytes_max=10)
    handler.put(METRIC)
    handler.put(METRIC)
    handler.close()
    assert lines(path) == lines(tmp_path / "events.1") == [METRIC_JSON]


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "events"
    handler = JsonLinesHandler(str(path))
    handler.put(METRIC)
    path.rename(tmp_path / "kept")
    handler.put(METRIC)
    path.unlink()
    handler.handle(EVENT)
    handler.close()
    assert lines(tmp_path / "kept") == [METRIC_JSON]
    assert lines(path) == [EVENT_JSON]


def test_agents_that_share_a_file_lose_and_tear_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events"
    size = len(METRIC.to_json()) + 1
    handlers = [JsonLinesHandler(str(path), bytes_max=100 * size) for _ in range(3)]

    def write(handler: JsonLinesHandler) -> None:
        for _ in range(50):
            handler.put(METRIC)

    threads = [threading.Thread(target=write, args=(handler,)) for handler in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for handler in handlers:
        handler.close()
    found = [*lines(path), *lines(tmp_path / "events.1")]
    assert found == [METRIC_JSON] * 150


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events"
    handler = JsonLinesHandler(str(path))
    handler.put(METRIC)
    with monkeypatch.context() as patch:
        real = os.write
        patch.setattr(os, "write", lambda file, data: real(file, data[:7]))
        with pytest.raises(OSError, match="No space left"):
            handler.put(METRIC)
    handler.handle(EVENT)
    handler.close()
    assert lines(path) == [METRIC_JSON, EVENT_JSON]


def test_only_a_regular_file_is_written_to(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        JsonLinesHandler("/dev/null")
    with pytest.raises(IsADirectoryError):
        JsonLinesHandler(str(tmp_path))
