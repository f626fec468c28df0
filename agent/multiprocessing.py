"""Shell. Starts the workers of one host, for launchers of one's own: what the documents name.

It lies in ``agent/compat/multiprocessing``.
"""

from drumbeat.agent.compat.multiprocessing import *  # noqa: F403 - all that it names
from drumbeat.agent.compat.multiprocessing import __all__ as __all__  # noqa: PLC0414
