"""Shell. Loads gRPC so that its core, in C, writes no lines of its own on standard error."""

import os
from importlib import import_module

_VERBOSITY = "GRPC_VERBOSITY"


def load_quietly() -> None:
    """Import gRPC, unless that was done before: errors are logged, failed handshakes are not.

    A connection that is not what it should be has an exception that says so. The variable is
    looked at once, and not left for workers to find; one that the user has set counts.
    """
    is_set = _VERBOSITY in os.environ
    os.environ.setdefault(_VERBOSITY, "ERROR")
    import_module("grpc")
    if not is_set:
        del os.environ[_VERBOSITY]
