"""Pure. The modules that are imported along with a module that is to be preloaded."""

IMPORTED_WITH = {
    # What DistributedDataParallel and FSDP import when they are first used; found by listing what
    # a step of each, a data loader with processes and a checkpoint add to ``sys.modules``.
    "torch": (
        "torch._dynamo",
        "torch.distributed",
        "torch.distributed.checkpoint",
        "torch.distributed.device_mesh",
        "torch.distributed.fsdp",
        "torch.nn.parallel",
        "torch.profiler._cupti_monitor",
        "torch.utils.data",
        "torch.utils.serialization",
        "multiprocessing.popen_fork",
        "multiprocessing.queues",
        "multiprocessing.synchronize",
    )
}
"""Modules that come with one that is named, as far as they exist in its version."""
