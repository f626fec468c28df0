"""A driver of GPUs that are not there: what ``agent/workers/devices`` uses of ``pynvml``."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

GIB = 1024**3


class FakeNvmlError(Exception):
    """Stands for ``pynvml.NVMLError``."""


@dataclass(kw_only=True)
class FakeGpu:
    uuid: str
    name: str = "Fake H200"
    total: int = 139 * GIB
    used: int = 0
    bus_id: bytes | str = b"00000000:3B:00.0"


class FakeNvml:
    """Behaves as the module does: counted initialization, errors by its own exception."""

    NVMLError = FakeNvmlError

    def __init__(self, gpus: Sequence[FakeGpu] = ()) -> None:
        self.gpus = list(gpus)
        self.failing: set[str] = set()
        self.users = 0
        self.looks = 0
        self.on_look = threading.Event()
        self.gate: threading.Event | None = None
        """If set, every initialization hangs until it is."""

    def _enter(self, name: str) -> None:
        if name in self.failing:
            raise FakeNvmlError(name)
        if self.users < 1 and name != "nvmlInit":
            raise FakeNvmlError("Uninitialized")

    def nvmlInit(self) -> None:  # noqa: N802
        if self.gate is not None:
            self.gate.wait()
        self._enter("nvmlInit")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._enter("nvmlDeviceGetHandleByIndex")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        self._enter("nvmlDeviceGetHandleByUUID")
        found = [gpu for gpu in self.gpus if gpu.uuid == uuid]
        if not found:
            raise FakeNvmlError("Not Found")
        return found[0]

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        self._enter("nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:  # noqa: N802
        self._enter("nvmlDeviceGetName")
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetMemoryInfo")
        self.looks += 1
        self.on_look.set()
        return SimpleNamespace(total=handle.total, used=handle.used)

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetPciInfo")
        return SimpleNamespace(busId=handle.bus_id)
