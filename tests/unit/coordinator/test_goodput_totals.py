"""The goodput of all runs, added up by owner or by week."""

from datetime import UTC, datetime
from typing import Any

import pytest

from drumbeat.coordinator.api.documents import Document
from drumbeat.coordinator.api.goodput_totals import totals_document
from drumbeat.coordinator.command.looking.screens import text_of, totals_screen
from drumbeat.coordinator.observe.messages import goodput_message
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration
from tests.support.world import a_running_story
from tests.unit.coordinator.test_goodput import train

HOUR = 3600.0
DAY = 24 * HOUR
# A Thursday; its week began three and a half days before.
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()
TRAINING, WAITING = pb.PART_KIND_TRAINING, pb.PART_KIND_WAITING


def account(*segments: tuple[pb.PartKind.ValueType, float], **fields: Any) -> pb.GetGoodputResponse:
    """Return the account of a run on 2 hosts of 8 workers that is in its last segment."""
    whole_s = left_s = sum(time_s for _, time_s in segments)
    message = pb.GetGoodputResponse(whole=duration(whole_s), workers_per_host=8.0, **fields)
    for kind, time_s in segments:
        message.parts.add(kind=kind, time=duration(time_s), host_seconds=2 * time_s)
        segment = message.segments.add(kind=kind, host_seconds=2 * time_s)
        segment.age.CopyFrom(duration(left_s))
        segment.time.CopyFrom(duration(time_s))
        left_s -= time_s
    return message


def totals(*accounts: pb.GetGoodputResponse, by: str = "owner", **more: Any) -> Document:
    owners = ("anna", "bob", "")
    runs = [pb.Run(run_id=f"r{i}", labels={"owner": owners[i]}) for i in range(len(accounts))]
    given = {"since_s": None, **more}
    return totals_document(zip(runs, accounts, strict=True), by=by, now=NOW, **given)


def rows(document: Document, *names: str) -> dict[str | None, list[Any]]:
    return {row["name"]: [row[name] for name in names] for row in document["rows"]}


def test_gpu_hours_are_the_time_of_hosts_times_their_workers() -> None:
    one = account((WAITING, HOUR), (TRAINING, 3 * HOUR), failures_count=2)
    document = totals(one, account((TRAINING, HOUR)), account((WAITING, HOUR)))
    assert rows(document, "gpu_s", "effective_ratio", "failures_count", "runs_count") == {
        "anna": [64 * HOUR, pytest.approx(0.75), 2, 1],
        "bob": [16 * HOUR, 1.0, 0, 1],
        None: [16 * HOUR, 0.0, 0, 1],
    }
    assert list(rows(document)) == ["anna", "bob", None], "those with most time come first"
    whole = document["total"]
    assert (whole["gpu_s"], whole["runs_count"], whole["failures_count"]) == (96 * HOUR, 3, 2)
    text = text_of(totals_screen(document)).splitlines()
    assert text[0].split() == ["OWNER", "RUNS", "GPU", "HOURS", "TRAINED", "FAILURES"]
    assert text[1].split() == ["anna", "1", "64.0", "75.0%", "2"]
    assert [line.split()[0] for line in text[2:]] == ["bob", "-", "all"]


def test_of_a_time_only_its_part_counts() -> None:
    one = account((WAITING, 6 * HOUR), (TRAINING, 2 * HOUR), failure_ages_seconds=[5 * HOUR, HOUR])
    one.failures_count = 2
    document = totals(one, since_s=3 * HOUR)
    (row,) = document["rows"]
    assert row["gpu_s"] == pytest.approx(3 * HOUR * 16)
    assert row["trained_s"] == pytest.approx(2 * HOUR * 16)
    assert row["failures_count"] == 1


def test_time_is_cut_at_the_beginning_of_each_week() -> None:
    one = account((TRAINING, 10 * DAY), failures_count=2, failure_ages_seconds=[4 * DAY, DAY])
    document = totals(one, by="week")
    assert rows(document, "gpu_s", "failures_count") == {
        "2026-W47": [pytest.approx(6.5 * DAY * 16), 1],
        "2026-W48": [pytest.approx(3.5 * DAY * 16), 1],
    }
    assert list(rows(document)) == ["2026-W47", "2026-W48"]


def test_time_before_the_first_segment_that_is_kept_is_spread_over_it() -> None:
    one = account((TRAINING, 8 * HOUR), (WAITING, 2 * HOUR))
    del one.segments[0]
    assert totals(one)["total"]["gpu_s"] == pytest.approx(10 * HOUR * 16)
    document = totals(one, since_s=6 * HOUR)
    assert document["total"]["trained_s"] == pytest.approx(4 * HOUR * 16)


def test_unknown_time_counts_nothing_and_a_run_without_rounds_neither() -> None:
    unknown = account((pb.PART_KIND_UNKNOWN, HOUR), (TRAINING, HOUR))
    forming = account((WAITING, HOUR))
    forming.workers_per_host = 0.0
    document = totals(unknown, forming)
    assert document["total"]["gpu_s"] == 16 * HOUR
    assert document["total"]["effective_ratio"] == 1.0


def test_of_a_run_that_ended_time_counts_until_then() -> None:
    run = pb.Run(run_id="r", ended_age=duration(DAY))
    one = account((TRAINING, HOUR), failures_count=1)
    one.segments[0].age.CopyFrom(duration(DAY + HOUR))
    document = totals_document([(run, one)], by="owner", since_s=DAY, now=NOW)
    assert document["total"]["gpu_s"] == 0.0
    document = totals_document([(run, one)], by="owner", since_s=None, now=NOW)
    assert document["total"]["gpu_s"] == 16 * HOUR


def test_the_account_of_a_run_tells_what_is_added_up() -> None:
    story = a_running_story(2, restarts_max=9)
    train(story, range(10))
    story.fail("b")
    story.obey_all()
    train(story, range(10, 30))
    run = story.run()
    made = goodput_message(run.state, run, now=story.now, with_segments=True)
    assert made.workers_per_host == 1.0
    assert list(made.failure_ages_seconds) == [20.0]
    of_hosts = sum(segment.host_seconds for segment in made.segments)
    assert of_hosts == sum(part.host_seconds for part in made.parts)
    total = totals(made)["total"]
    assert total["gpu_s"] == pytest.approx(of_hosts)
    assert total["failures_count"] == 1
