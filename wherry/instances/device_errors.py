"""Has an error left the accelerator unusable for the rest of this process, or was there too little
memory?

After a failed assertion or an illegal access on a GPU each later call in the process fails, too:
only a new process can go on. A smaller batch may find memory.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from typing import Any

#: How the messages begin of torch, ONNX Runtime, CuPy, JAX, Numba, PyCUDA, Triton's kernels and
#: TensorRT; TorchScript has them at the beginning of a line. Not anywhere: a message may quote a
#: client.
_BROKEN = re.compile(
    r"^(?:\w+Error: |INTERNAL: |\[ONNXRuntimeError\] : \d+ : \w+ : |\[\d+\] |\w+ failed: )?"
    r"(?:.*Status Message: )?"
    r"(?:(?:CUDA|HIP|cuDNN|cuBLAS|MIOpen|NCCL|XPU) (?:driver )?(?:error|failure)\b"
    r"|Triton Error \[\w+\]:|(?:Error Code \d+: )?Cuda Runtime \("
    r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|MIOPEN)_STATUS_\w+"
    r"|(?:an )?illegal (?:memory access|instruction)|device-side assert|misaligned address\b"
    r"|unspecified launch failure|uncorrectable \w+ error|(?:CUDA )?driver shutting down"
    r"|(?:\w+: (?:failed to synchronize: )?)?(?:cuda|hip)Error\w+|(?:CUDA|HIP)_ERROR_\w+"
    r"|.{0,200}\b(?:CUDA|HIP)_ERROR_(?:ILLEGAL_\w+|LAUNCH_FAILED|ASSERT|HARDWARE\w+|ECC\w+))",
    re.MULTILINE | re.IGNORECASE,
)
#: What smaller batches, or less of other things, would help against, in the words of torch, CUDA,
#: HIP, SYCL, OpenCL and their libraries, ONNX Runtime, CuPy, JAX, TensorFlow and allocators of C++.
_MEMORY = re.compile(
    r"out.?of.?(?:\w+.)?memory|\bOOM\b|OUT_OF_RESOURCES|resource_?exhausted"
    r"|alloc(?:ation)?_?fail|MemoryAllocation|\bbad.?alloc|status_memory_error"
    r"|STATUS_INSUFFICIENT_RESOURCES|(?:not enough|insufficient) (?:\w+ )?memory"
    r"|(?:fail\w*|unable|cannot|can't|could not) (?:to )?allocate|smaller than requested bytes",
    re.IGNORECASE,
)
#: Errors of other origin, whose text may be a client's.
_OTHERS = (ValueError, TypeError, LookupError, ArithmeticError, OSError, AssertionError)


def broken_device(error: BaseException) -> str:
    """What has left the device unusable, in a line; "" if nothing has.

    Where torch uses a GPU here, the GPU itself is tried; elsewhere the error's text decides.
    """
    for one in _chain(error):
        if (text := _device_error(one)) and not _still_works():
            return text
    return ""


def broken_by(text: str) -> str:
    """The same of an error in another process, of which its class and its text are known."""
    cls = getattr(builtins, text.partition(":")[0], None)
    if (isinstance(cls, type) and issubclass(cls, _OTHERS)) or _MEMORY.search(text):
        return ""
    return _first_line(text)


def out_of_memory(error: BaseException) -> bool:
    """Is it, or one that it stands for, for lack of memory, on a device or here?"""
    return any(
        isinstance(one, MemoryError) or _MEMORY.search(f"{type(one).__name__}: {_text(one)}")
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _device_error(error: BaseException) -> str:
    if isinstance(error, _OTHERS) or not isinstance(error, Exception):
        return ""
    text = _text(error)
    if _MEMORY.search(text):
        return ""
    if line := _first_line(text):
        return line
    is_torch = any(cls.__name__ == "AcceleratorError" for cls in type(error).__mro__)
    return text.partition("\n")[0][:300] if is_torch else ""


def _first_line(text: str) -> str:
    found = _BROKEN.search(text)
    return "" if found is None else text[found.start() :].partition("\n")[0][:300]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__
        return ""


def _still_works() -> bool:
    """Does a GPU that torch uses here take work? False where there is none to try."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)
    except RuntimeError:  # AcceleratorError is one
        return False
    return True
