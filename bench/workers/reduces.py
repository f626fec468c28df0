"""A worker that times steps of small collectives, and writes their median.

reduces.py DIRECTORY STEPS
"""

import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

REDUCES = 1_000

torch.set_num_threads(1)
dist.init_process_group("gloo")
tensor, times = torch.ones(5), []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    for _ in range(REDUCES):
        dist.all_reduce(tensor)
    times.append(time.perf_counter() - began)
if os.environ["RANK"] == "0":
    (Path(sys.argv[1]) / "median").write_text(str(statistics.median(times)))
dist.destroy_process_group()
