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

from wherry.core.values.errors import WherryError

#: What leaves a device unusable, in the words of the drivers of CUDA and HIP and of their
#: libraries, wherever a message has it.
_FAULT = re.compile(
    r"illegal memory access|illegal instruction was|device-side assert|misaligned address\b"
    r"|unspecified launch failure|launch timed out and was terminated|failed: launch timeout"
    r"|invalid program counter|global/shared address space|hardware stack error"
    r"|uncorrectable \w+ error|memory access fault by GPU|fallen off the bus|GPU is lost"
    r"|unhandled (?:cuda|hip) error"
    r"|(?:CUDA|HIP)_?ERROR_?(?:ILLEGAL|ASSERT|LAUNCH_?(?:FAIL|TIMEOUT)|MISALIGNED|INVALID_?PC"
    r"|HARDWARE|ECC|NVLINK)"
    r"|\b(?:CU|HIP|ROC)[A-Z]+_(?:STATUS_)?(?:EXEC\w*_FAILED|MAPPING_ERROR|INTERNAL_ERROR\b)"
    r"|TensorRT EP \w+ context enqueue failed",
    re.IGNORECASE,
)
#: How other messages of broken devices begin, of torch, ONNX Runtime, CuPy, JAX, Numba, PyCUDA,
#: XGBoost, Triton's kernels and TensorRT, behind names of classes, ranks, files and places;
#: TorchScript has them at the beginning of a line. Not anywhere: a message may quote a client.
_BROKEN = re.compile(
    r"^(?:[\w.:]+: |\(\w+\) |\[[^]\n]{1,80}\](?: :)? |\w+ failed: "
    r"|\S+\.(?:cuh?|cc|[ch](?:pp)?):\d+: |(?:Exception in|failed to|after) [\w ]{1,40}: ){0,8}?"
    r"(?:.*(?:Status Message: |\bCudaCall\(.*\] ))?"
    r"(?:(?:CUDA|HIP|cuDNN|cuBLAS|cublasLt|cuFFT|cuSOLVER|cuSPARSE|cuRAND|MIOpen|rocBLAS|hipBLAS"
    r"|NCCL|RCCL|XPU|Platform \(Cuda\))"
    r" (?:\w+ )?(?:error|failure|exception|assert|failed|ran into)\b"
    r"|Triton Error \[\w+\]:|Error Code 1: (?:Cu\w+|Cask|Myelin)\b|GPU sync failed"
    r"|Call to cu\w+ results in|Blas \w+ launch failed|(?:CUDA )?driver shutting down"
    r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS)_\w+|miopenStatus\w+|rocblas_status_\w+"
    r"|(?:cuda|hip)Error\w+|(?:CUDA|HIP)_ERROR_\w+)",
    re.MULTILINE | re.IGNORECASE,
)
#: What a call alone has done wrong: the next one runs.
_REFUSED = re.compile(
    r"invalid.?(?:argument|value|device|config|resource.?handle|size|source|image|ptx|plan|type)"
    r"|no.?kernel.?image|no.?binary|not.?(?:supported|permitted|found)|unsupported|bad_?param"
    r"|(?:arch|version).?mismatch|peer.?access|too many resources|launch_?out_?of_?resources"
    r"|stream.{0,4}captur|insufficient.?driver|driver version is insufficient|no.?device"
    r"|no CUDA-capable",
    re.IGNORECASE,
)
#: What smaller batches, or less of other things, would help against, in the words of torch, CUDA,
#: HIP, SYCL, OpenCL and their libraries, ONNX Runtime, CuPy, JAX, TensorFlow and allocators of C++.
_MEMORY = re.compile(
    r"out.?of.?(?:\w+.)?memory|\bOOM\b|OUT_OF_RESOURCES|resource.?exhausted"
    r"|alloc(?:ation)?_?fail|MemoryAllocation|\bbad.?alloc|status_memory_error"
    r"|STATUS_INSUFFICIENT_RESOURCES|(?:not enough|insufficient) (?:\w+ )?(?:memory|VRAM)"
    r"|(?:fail\w*|unable|cannot|can't|could not) (?:to )?allocate|smaller than requested bytes"
    r"|(?:memory|resource) allocation (?:\w+ )*failed|\b(?:cu|hip)\w*alloc\w* (?:failed|results)"
    r"|ran out of (?:\w+ )?(?:memory|VRAM)|no memory left|memory (?:is )?exhausted"
    r"|pool size exceeded|TensorRT EP failed to create (?:\w+ )?context"
    r"|unable to find an engine to execute|Tried to allocate [\d.]+ [KMGT]i?B",
    re.IGNORECASE,
)
#: What is in quotation marks may be a client's.
_QUOTED = re.compile(
    r"""(?<!\w)(?:'(?:[^']|(?<=\w)'(?=\w))*+'|"(?:[^"]|(?<=\w)"(?=\w))*+")(?!\w)"""
)
#: Errors of other origin, whose text may be a client's.
_OTHERS = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, WherryError)
#: Errors of libraries that are subclasses of these, and count nevertheless.
_LIBRARIES = ("XGBoostError",)


def broken_device(error: BaseException) -> str:
    """What has left the device unusable, in a line; "" if nothing has.

    Where torch uses a GPU here, the GPU itself is tried; elsewhere the error's text decides.
    """
    for one in _chain(error):
        if (text := _device_error(one)) and not _still_works():
            return text
    return ""


def broken_by(text: str) -> str:
    """The same for an error in another process, of which class and text are known."""
    cls = getattr(builtins, text.partition(":")[0], None)
    return "" if isinstance(cls, type) and issubclass(cls, _OTHERS) else _fault(text)


def out_of_memory(error: BaseException) -> bool:
    """Is this error, or one that caused it, for lack of memory, on a device or here?"""
    return any(
        isinstance(one, MemoryError)
        or (
            _MEMORY.search(text := f"{type(one).__name__}: {_text(one)}")
            and not _FAULT.search(_unquoted(text))
        )
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _device_error(error: BaseException) -> str:
    names = [cls.__name__ for cls in type(error).__mro__]
    if not isinstance(error, Exception) or (
        isinstance(error, _OTHERS) and names[0] not in _LIBRARIES
    ):
        return ""
    text = _text(error)
    if line := _fault(text):
        return line
    is_torch = "AcceleratorError" in names
    return text.partition("\n")[0][:300] if is_torch and not _is_harmless(text) else ""


def _fault(text: str) -> str:
    """The line that reports an unusable device, or ""."""
    own = _unquoted(text)
    found = _FAULT.search(own) or (None if _is_harmless(text) else _BROKEN.search(own))
    if found is None:
        return ""
    return text[own.rfind("\n", 0, found.end()) + 1 :].partition("\n")[0][:300]


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)


def _is_harmless(text: str) -> bool:
    return bool(_MEMORY.search(text) or _REFUSED.search(text.partition("\n")[0]))


def _text(error: BaseException) -> str:
    try:
        return str(error)[:20_000]
    except Exception:  # noqa: BLE001 - the user's own __str__
        return ""


def _still_works() -> bool:
    """Does the GPU that torch uses here still work? False without such a GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)
    except RuntimeError:  # AcceleratorError is one
        return False
    return True
