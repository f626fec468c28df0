"""The page of sizes: its figures, plots and simulation, without measuring."""

import json
import re
import shlex
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from bench.scale import curves, goodput_at_scale, page
from bench.scale.goodput_at_scale import RATES, ControlPlane, Kind, Part, at_hosts, own, simulate
from bench.svg import DARK, LIGHT, log_chart, stacked_bars
from tests.support.processes import ROOT

SPACE = {"svg": "http://www.w3.org/2000/svg"}
RESULTS = {
    "circumstances": {
        "cpus": 4,
        "load": [0.26, 1.0, 2.0],
        "versions": {"python": "3.12.1", "grpcio": "1.80.0"},
    },
    "figures": {
        "rendezvous": {"10": [0.1, 0.3, 0.2], "100": [1.0, 1.2, 1.1]},
        "rendezvous_alone": {"10": [0.05, 0.15, 0.1], "100": [0.5, 0.6, 0.7]},
        "restart": {"10": [0.02], "100": [0.1]},
        "restart_alone": {"10": [0.01], "100": [0.1]},
        "loss": {"10": [5.0], "100": [5.1]},
        "torchrun": {"10": [1.0], "100": [None]},
    },
}


def a_plane(**times: float) -> ControlPlane:
    nothing = dict.fromkeys(
        ("find_worker_s", "find_host_s", "hang_limit_s", "assign_s", "processes_s"), 0.0
    )
    return ControlPlane(name="one", source="", **nothing | times)


def test_what_the_generator_took_is_left_out_but_never_what_the_coordinator_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert curves.alone(10.0, 4.0, 6.0) == 7.0
    assert curves.alone(10.0, 8.0, 18.0) == 4.0


def test_more_connections_than_files_are_refused_before_anything_is_measured() -> None:
    assert curves.files_error([10]) == ""
    assert "ulimit -Hn" in curves.files_error([10**9])


def test_all_causes_of_the_paper_are_there() -> None:
    assert goodput_at_scale.UNEXPECTED == 419


def test_a_time_between_two_sizes_lies_between_their_medians() -> None:
    times: dict[str, list[float | None]] = {"1000": [1.0, 9.0, 2.0], "3000": [4.0], "10": [None]}
    assert at_hosts(times, 2_000) == 3.0
    assert at_hosts(times, 1_000) == 2.0
    assert at_hosts(times, 6_000) == 8.0, "in proportion beyond the largest"
    assert at_hosts(times, 10) == 2.0


def test_a_simulation_is_the_same_for_a_seed_and_no_part_takes_time_that_is_not_there() -> None:
    plane = a_plane(find_worker_s=600.0, find_host_s=600.0, hang_limit_s=600.0)
    assert simulate(plane, 10, 3) == simulate(plane, 10, 3) != simulate(plane, 10, 4)
    assert 0 < sum(simulate(plane, 100, 1).values()) < 100.001


def test_the_share_of_a_part_is_its_time_at_each_failure() -> None:
    shares = [simulate(a_plane(assign_s=1.0), 1, seed)[Part.ASSIGN] for seed in range(5)]
    expected = 100 * 419 / (54 * 86_400)
    assert all(0.8 * expected < share < 1.2 * expected for share in shares)


def test_who_is_slower_loses_more_and_only_hangs_wait_for_their_limit() -> None:
    slow = simulate(a_plane(assign_s=30.0, hang_limit_s=60.0), 1, 1)
    assert own(slow) > own(simulate(a_plane(), 1, 1)) == 0
    assert dict(a_plane(hang_limit_s=60.0).recovery(Kind.WORKER))[Part.LIMIT] == 0
    assert dict(a_plane(hang_limit_s=60.0).recovery(Kind.HANG))[Part.LIMIT] == 60


def test_a_chart_has_its_lines_in_order_and_colours_for_light_and_dark_pages() -> None:
    chart = log_chart(
        "A & B", "agents", "seconds", {"one": [(100, 2), (10, 0.5)], "two": [(10, 3)]}
    )
    root = ET.fromstring(chart)
    points = root.findall("svg:polyline", SPACE)[0].get("points", "").split()
    (x, y), (x_later, y_later) = (map(float, point.split(",")) for point in points)
    assert x < x_later
    assert y > y_later, "more is above"
    assert all(colour in chart for colour in (LIGHT[1], DARK[1], "prefers-color-scheme: dark"))
    assert "http" not in chart.replace('xmlns="http://www.w3.org/2000/svg"', ""), "loads nothing"


def test_parts_of_a_bar_follow_each_other_and_are_as_wide_as_they_are_large() -> None:
    bars = {"a": {"find": 1.0, "load": 3.0}, "b": {"find": 2.0, "load": 0.0}}
    root = ET.fromstring(stacked_bars("t", "%", bars))
    rects = [r for r in root.findall("svg:rect", SPACE) if r.get("height") == "20"]
    widths = [float(rect.get("width", 0)) for rect in rects]
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.1)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.1)
    assert float(rects[1].get("x", 0)) == pytest.approx(
        float(rects[0].get("x", 0)) + widths[0], abs=0.2
    )


@pytest.mark.slow
def test_the_page_shows_medians_ratios_and_what_never_happened() -> None:
    text = page.text(RESULTS)
    assert "| all agents come at once: all have ranks | 0.2 | 1.1 |" in text
    assert "| … without the generator | 0.1 | 0.6 |" in text
    assert "| torchrun's c10d: all have ranks | 1 | over 120 |" in text
    assert "| torchrun / drumbeat, all have ranks | 5 | - |" in text
    assert "Every run had its figures." in text
    failed = page.text({**RESULTS, "errors": {"back": {"10000": ["TimeoutError()"]}}})
    assert "Without figures: back of 10,000 agents (1 x: `TimeoutError()`)." in failed
    assert "medians of 3 runs, on 4 cores with a\nload of 0.3 before" in text


def test_the_committed_page_is_the_one_of_the_committed_results() -> None:
    """``python -m bench.scale.curves --from-results`` writes it."""
    results = json.loads((ROOT / "docs" / "scale.json").read_text())
    assert (ROOT / "docs" / "scale.md").read_text() == page.text(
        results, page.others(ROOT / "docs")
    )
    for name, drawing in page.plots(results).items():
        assert (ROOT / "docs" / "images" / f"scale-{name}.svg").read_text() == drawing


def test_the_claim_of_the_page_holds_for_failures_as_often_as_they_were_seen() -> None:
    results = json.loads((ROOT / "docs" / "scale.json").read_text())
    shares = [own(goodput_at_scale.medians(goodput_at_scale.ours(results), r)) for r in RATES]
    assert shares[0] < page.CLAIM
    assert all(less < more for less, more in pairwise(shares))


def test_the_commands_of_the_page_are_understood() -> None:
    commands = re.findall(r"python -m bench\.scale\.curves ([^`]*)", page.text(RESULTS))
    assert len(commands) == 4
    for command in commands:
        assert set(curves.parsed(shlex.split(command)).parts.split(",")) <= set(curves.PARTS)
