"""How does the code of an instance use its GPU by torch: which one, by which stream, from which
memory?

Where torch is not imported, or sees no GPU, nothing happens. A GPU's context is made only where the
model needs one.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from wherry.core.models.model import Device
from wherry.core.workers.shared_memory import Region

log = logging.getLogger("wherry")

#: Libraries other than torch by which Python code uses GPUs.
GPU_LIBRARIES: Final = frozenset({
    "cupy", "jax", "tensorflow", "onnxruntime", "openvino", "tensorrt", "numba", "cuda", "pycuda",
    "paddle", "warp", "ctranslate2", "llama_cpp", "vllm", "xgboost", "cudf", "cuml",
})  # fmt: skip
_ALLOCATED: Final = "allocated_bytes.all.allocated"
#: What `devices.for_torch` allocates to find out whether a device can be used: torch's minimum.
_PROBE_BYTES: Final = 512


def make_current(device: Device) -> None:
    """Have `.cuda()` in this thread mean the instance's GPU. Before the model is made, and before
    it is loaded: either may import torch."""
    cuda = _cuda(device)
    if cuda is not None and (
        device.index or cuda.is_initialized()
    ):  # 0 is what a process begins with
        cuda.set_device(device.index)


def torch_device(device: Device) -> str:
    """Where the instance's tensors are, by torch's name."""
    return "cpu" if _cuda(device) is None else str(device)


def own_stream(device: Device, *, shared: bool) -> Callable[[], AbstractContextManager[Any]] | None:
    """Give this thread a stream of its own, if the model that it has loaded uses the GPU: else the
    instances of a process run one after the other there. `shared`: the device's default stream,
    which keeps what hands tensors over in order. Returns a function, whose context has a caller's
    thread use it too.

    Waits until what was loaded, by this thread or by another one, has reached the GPU.
    """
    cuda = _cuda(device)
    if cuda is None or not cuda.is_initialized():
        return None
    cuda.synchronize(device.index)
    stream = cuda.default_stream(device.index) if shared else cuda.Stream(device.index)
    cuda.set_stream(stream)
    return lambda: cuda.stream(stream)


@contextmanager
def pinned(region: Region, device: Device) -> Iterator[None]:
    """Pin the memory to which the parent writes rows while the model uses the GPU, which then reads
    it directly: the driver makes no copy first."""
    cuda = _cuda(device)
    if cuda is None or not cuda.is_initialized():
        yield
        return
    runtime = cuda.cudart()
    address = region.address
    refused = int(runtime.cudaHostRegister(address, region.size, 0))
    if refused:
        log.debug("rows are copied twice: not pinned", extra={"cuda_error": refused})
        with suppress(RuntimeError):  # or the next kernel would report it as its own
            sys.modules["torch"].ones(1, device=str(device))
    try:
        yield
    finally:
        if not refused:
            runtime.cudaHostUnregister(address)


def allocated_bytes(device: Device) -> int:
    """All that torch has ever taken in this process of a device that "auto" has chosen."""
    cuda = _cuda(device) if device.automatic else None
    return 0 if cuda is None else int(cuda.memory_stats(device.index).get(_ALLOCATED, 0))


def is_used(device: Device, before: int = 0) -> bool:
    """Whether torch has taken memory of the device beyond `before` bytes. Another library that
    uses GPUs may have, if it is imported."""
    if not device.automatic or not GPU_LIBRARIES.isdisjoint(sys.modules):
        return True
    return allocated_bytes(device) - before > _PROBE_BYTES


def _cuda(device: Device) -> Any:
    """`torch.cuda`, if torch is imported and sees the device."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if device.kind != "cuda" or cuda is None or device.index >= cuda.device_count():
        return None
    return cuda
