"""A launcher whose workers write short lines as fast as they can, all of them shown.

tee_launcher.py ours|torchrun WORKERS LINES
"""

import importlib
import sys
import tempfile

PACKAGES = {
    "ours": "drumbeat.agent.multiprocessing",
    "torchrun": "torch.distributed.elastic.multiprocessing",
}
# Says when it begins, on the clock that all processes of a host share.
SCRIPT = "import os, time; print('began', time.monotonic(), flush=True); os.execvp('seq', {argv})"


def main() -> None:
    api = importlib.import_module(PACKAGES[sys.argv[1]])
    workers, lines = int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory(prefix="drumbeat-bench-") as directory:
        script = SCRIPT.format(argv=["seq", lines])
        context = api.start_processes(
            "worker",
            sys.executable,
            dict.fromkeys(range(workers), ("-c", script)),
            {rank: {} for rank in range(workers)},
            api.DefaultLogsSpecs(directory, tee=api.Std.ALL),
        )
        result = context.wait(period=0.01)
    sys.exit(1 if result.is_failed() else 0)


if __name__ == "__main__":
    main()
