"""Pure. Names of the environment variables through which an agent speaks to its workers.

The names of torchrun keep their meaning, so that an unmodified script runs.
Source: ``torch/distributed/elastic/agent/server/local_elastic_agent.py`` (2.13.0).
"""

RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
GROUP_RANK = "GROUP_RANK"
GROUP_WORLD_SIZE = "GROUP_WORLD_SIZE"
ROLE_RANK = "ROLE_RANK"
ROLE_NAME = "ROLE_NAME"
ROLE_WORLD_SIZE = "ROLE_WORLD_SIZE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
TORCH_RUN_ID = "TORCHELASTIC_RUN_ID"
SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NCCL_ASYNC_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
OMP_NUM_THREADS = "OMP_NUM_THREADS"
FLIGHT_RECORDER_SIZE = "TORCH_FR_BUFFER_SIZE"  # how many calls torch's flight recorder keeps
NCCL_TRACE_BUFFER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"  # its earlier name

# Of a job with several replica groups; the names are those of torchft.
REPLICA_GROUP_ID = "REPLICA_GROUP_ID"
NUM_REPLICA_GROUPS = "NUM_REPLICA_GROUPS"
TORCHFT_LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"  # URL of the lighthouse that torchft's managers ask

RUN_ID = "DRUMBEAT_RUN_ID"
ROUND = "DRUMBEAT_ROUND"

AGENT_DIR = "DRUMBEAT_AGENT_DIR"  # by which the next agent finds what a killed one left running
WORKER_SOCKET = "DRUMBEAT_WORKER_SOCKET"
WORKER_TOKEN = "DRUMBEAT_WORKER_TOKEN"  # noqa: S105 - a name
WORKER_DIR = "DRUMBEAT_WORKER_DIR"  # its board and two FIFOs: see ``worker_sdk.board.layout``
FILE_TIMER_ENABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
FILE_TIMER_PATH = "TORCHELASTIC_TIMER_FILE"

# After the name of the error file: where Python's fault handler writes if an agent has made it.
FAULT_FILE_SUFFIX = ".faulthandler"
OBSERVER = "DRUMBEAT_OBSERVER"  # where the agent listens for the observer of a worker
