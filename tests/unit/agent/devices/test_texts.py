"""The texts in which the system writes CPUs and PCI addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.agent.model.messages import CPUS_MAX
from drumbeat.agent.workers.devices.binding import parse_cpu_list
from drumbeat.agent.workers.devices.nvml import sysfs_pci_address
from drumbeat.text.format import ranges


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("\n", set()),
        ("0\n", {0}),
        ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        ("7, 5-5", {5, 7}),
    ],
)
def test_a_list_of_the_kernel_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["x", "3-1", "0-", "-1", ",", "1,,2", f"0-{CPUS_MAX}", "0x1f"])
def test_anything_else_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of CPUs"):
        parse_cpu_list(text)


@given(st.frozensets(st.integers(0, CPUS_MAX - 1), max_size=50))
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(ranges(cpus)) == cpus


def test_runs_are_written_short() -> None:
    assert ranges([8, 0, 2, 1, 1]) == "0-2,8"
    assert ranges([]) == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0001A2B3:01:00.7", "1a2b3:01:00.7"),
        ("", ""),
        ("3b:00.0", ""),
        ("../../etc", ""),
    ],
)
def test_an_address_of_the_driver_is_written_as_sysfs_does(text: str, address: str) -> None:
    assert sysfs_pci_address(text) == address
