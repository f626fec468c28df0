"""What is said of an address that the coordinator can't listen on."""

import errno
import socket

import pytest

from drumbeat.coordinator.errors import PortInUse
from drumbeat.coordinator.shell.transport.binding import bind_error


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "another coordinator may run here"),
        (socket.gaierror(-2, "Name or service not known"), "--host has to be"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "--host has to be"),
        (OSError(errno.EACCES, "Permission denied"), "choose a --port above 1023"),
        (RuntimeError("in use"), "another coordinator may run here"),
    ],
)
def test_the_hint_fits_what_is_wrong(error: OSError | RuntimeError, hint: str) -> None:
    found = bind_error("nohost", 80, error)
    assert isinstance(found, PortInUse)
    assert found.hint.startswith(hint)
    assert str(found).startswith("cannot listen on port 80 of nohost: ")
