"""Replicas that ask a lighthouse again and again: ``quorum_clients.py QUORUMS URL…``, one per URL.

Prints the milliseconds from the last request of each quorum to each answer, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from datetime import timedelta

from torchft.coordination import LighthouseClient

TIMEOUT = timedelta(seconds=60)
WARM_UP = 20  # quorums that are not counted
HEARTBEAT_S = 1.0
COMPUTE_S = 0.02  # the longest pause of a replica between two quorums


def ask(client: LighthouseClient, replica_id: str, quorums: int, times: list[object]) -> None:
    pause = random.Random(replica_id)
    for step in range(quorums):
        time.sleep(pause.uniform(0, COMPUTE_S))
        asked = time.monotonic()
        quorum = client.quorum(
            replica_id=replica_id,
            timeout=TIMEOUT,
            address=f"http://host-{replica_id}:29500",
            store_address=f"host-{replica_id}:29501",
            step=step,
            world_size=8,
        )
        times.append((len(quorum.participants), asked, time.monotonic()))


def beat(replicas: list[tuple[LighthouseClient, str]], is_over: threading.Event) -> None:
    while not is_over.wait(HEARTBEAT_S):
        for client, name in replicas:
            client.heartbeat(name)


def main() -> None:
    quorums, urls = int(sys.argv[1]) + WARM_UP, sys.argv[2:]
    clients = [LighthouseClient(addr=url, connect_timeout=TIMEOUT) for url in urls]
    names = [f"group{i:04}:{i:032x}" for i in range(len(urls))]
    is_over = threading.Event()
    beating = threading.Thread(target=beat, args=(list(zip(clients, names, strict=True)), is_over))
    beating.start()
    times: list[list[tuple[int, float, float]]] = [[] for _ in urls]
    threads = [
        threading.Thread(target=ask, args=(*each, quorums, kept))
        for *each, kept in zip(clients, names, times, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    beating.join()
    latencies = []
    for step in list(zip(*times, strict=True))[WARM_UP:]:
        assert all(size == len(urls) for size, _, _ in step), "a quorum without some of them"
        last = max(asked for _, asked, _ in step)
        latencies += [1000 * (answered - last) for _, _, answered in step]
    print(json.dumps(latencies), flush=True)


if __name__ == "__main__":
    main()
