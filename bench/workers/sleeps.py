"""A worker that tells the benchmark it is there and then waits for the benchmark's end.

sleeps.py HOST PORT
"""

import json
import os
import socket
import sys

with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as benchmark:
    ranks = {"rank": "RANK", "world_size": "WORLD_SIZE"}
    facts = {"pid": os.getpid(), **{key: int(os.environ[name]) for key, name in ranks.items()}}
    benchmark.sendall(json.dumps(facts).encode() + b"\n")
    benchmark.recv(1)  # returns when the benchmark closes its side, however it ends
