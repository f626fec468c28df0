"""A worker that imports torch, or trains a step too, before it tells the benchmark it is there.

trains.py HOST PORT import|step
"""

import sys
from importlib import import_module

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if sys.argv[3] == "step":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()

import_module("sleeps")  # what it does, it does when it is imported
