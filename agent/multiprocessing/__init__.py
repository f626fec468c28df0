"""Starts the workers of one host and reports how they ended, for launchers of one's own.

Takes the place of ``torch.distributed.elastic.multiprocessing``: same names, same arguments.
"""

from agent.errors import ProcessFailure
from agent.multiprocessing.context import PContext, RunProcsResult
from agent.multiprocessing.multiprocess_context import MultiprocessContext
from agent.multiprocessing.signals import SignalException
from agent.multiprocessing.start import start_processes
from agent.multiprocessing.subprocess_context import SubprocessContext
from agent.workers.output.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from agent.workers.output.std import Std, to_map

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "start_processes",
    "to_map",
]
