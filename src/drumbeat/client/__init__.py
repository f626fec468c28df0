"""Shell. A client of the coordinator for launchers that start the workers themselves.

See docs/client.md.
"""

from drumbeat.client.client import Client
from drumbeat.client.errors import ClientError, Disconnected, Drained, Refused, RunOver, Verdict
from drumbeat.client.membership import WorkerFailure
from drumbeat.model import Assignment

__all__ = [
    "Assignment",
    "Client",
    "ClientError",
    "Disconnected",
    "Drained",
    "Refused",
    "RunOver",
    "Verdict",
    "WorkerFailure",
]
