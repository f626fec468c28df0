"""Where a host is: what labels and Slurm say, and settings that do not fit together."""

from typing import Any

import pytest

from drumbeat.agent.errors import UsageError
from drumbeat.agent.runtime import preflight
from drumbeat.agent.settings.config import AgentConfig, Program
from drumbeat.agent.settings.placement import PLACES_MAX, slurm_place

LABELS = ("zone=a", "rack=b7")


def config(**fields: Any) -> AgentConfig:
    given: dict[str, Any] = {"run_id": "r", "labels": LABELS, "program": Program("program", "x")}
    return AgentConfig(**(given | fields))


def test_the_place_is_the_values_of_the_labels_in_the_order_given() -> None:
    assert config(rank_order=("zone", "rack")).placement == ("a", "b7")
    assert config(rank_order=("rack",)).placement == ("b7",)
    assert config().placement == ()
    assert config(block_label="rack", block_size=1).block == "b7"
    assert config().block == ""


@pytest.mark.parametrize(
    ("address", "pattern", "expected"),
    [
        ("s0.s4.node17", "switch.switch.node", ("s0", "s4")),
        ("s0.s4.node17", "", ("s0", "s4")),
        ("b1.node17", "block.node", ("b1",)),
        ("s0.s4", "switch.switch", ("s0", "s4")),
        ("s0.s4.node17", "node", ("s0", "s4")),  # of another address
        ("node17", "node", ("12",)),  # no switches: the place among the tasks
        ("", "", ("12",)),
    ],
)
def test_slurm_names_the_switches_above_a_node(
    address: str, pattern: str, expected: tuple[str, ...]
) -> None:
    environment = {
        "SLURM_TOPOLOGY_ADDR": address,
        "SLURM_TOPOLOGY_ADDR_PATTERN": pattern,
        "SLURM_PROCID": "12",
    }
    assert slurm_place(environment) == expected


def test_an_address_that_never_ends_is_cut() -> None:
    long = ".".join(f"s{number}" for number in range(1000))
    assert len(slurm_place({"SLURM_TOPOLOGY_ADDR": long})) == PLACES_MAX


def test_without_topology_the_place_is_that_among_the_tasks() -> None:
    assert slurm_place({"SLURM_PROCID": "3"}) == ("3",)


def test_outside_of_slurm_the_error_says_what_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "inherited_environment", dict)
    with pytest.raises(UsageError, match="SLURM_TOPOLOGY_ADDR nor SLURM_PROCID is set"):
        preflight.check_placement(config(rank_order=("slurm",)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rank_order": ("zone", "switch")}, "labels that have a value here: zone, rack"),
        ({"rank_order": ("rack",), "labels": ()}, "none, see --labels"),
        ({"block_label": "pod", "block_size": 1}, "labels that have a value here: zone, rack"),
        ({"rank_order": ("pod",), "labels": (*LABELS, "pod=")}, "here: zone, rack"),
        ({"block_label": "pod", "block_size": 1, "labels": ("pod=",)}, "none, see --labels"),
        ({"host_identity": "serial"}, "labels that have a value here: zone, rack"),
        ({"block_label": "rack"}, "above 0 with --block-label"),
        ({"block_size": 2, "min_nodes": 2, "max_nodes": 2}, "above 0 with --block-label"),
        (
            {"block_label": "rack", "block_size": 4, "min_nodes": 4, "max_nodes": 6},
            "multiples of --block-size (4)",
        ),
        ({"preflight": "true", "stdout_capture": False}, "on, for --preflight is read"),
    ],
)
def test_settings_that_do_not_fit_are_named_with_what_is_allowed(
    fields: dict[str, Any], expected: str
) -> None:
    (violation,) = config(**fields).validate()
    assert expected in str(violation)


def test_a_preflight_is_split_like_a_shell_does_and_must_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "inherited_environment", lambda: {"PATH": "/bin:/usr/bin"})
    checked = preflight.check_placement(config(preflight="sh -c 'exit 0'"))
    assert checked.preflight_command == ("sh", "-c", "exit 0")
    for command in ("is-not-there --x", "sh 'open", "   "):
        with pytest.raises(UsageError, match="--preflight"):
            preflight.check_placement(config(preflight=command))
