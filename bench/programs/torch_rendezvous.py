"""N rendezvous handlers of torchrun in one process: prints the seconds until all have ranks.

python -m bench.programs.torch_rendezvous N PORT
"""

from __future__ import annotations

import os
import sys
import threading
import time

from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def main() -> None:
    count, port = int(sys.argv[1]), int(sys.argv[2])
    handlers = []
    for index in range(count):
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=f"127.0.0.1:{port}",
            run_id="bench",
            min_nodes=count,
            max_nodes=count,
            is_host=index == 0,
        )
        backend, store = create_backend(parameters)
        handlers.append(create_handler(store, backend, parameters))

    threads = [threading.Thread(target=handler.next_rendezvous) for handler in handlers]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.monotonic() - began, flush=True)
    os._exit(0)  # the handlers' own threads would go on beating


if __name__ == "__main__":
    main()
