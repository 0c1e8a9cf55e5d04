"""Which errors say that the device is lost for the process, and which do not?"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import wherry
from wherry.instances.device_errors import broken_device


class AcceleratorError(RuntimeError):
    """As torch's."""


LOST = [
    RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("HIP error: an illegal memory access was encountered"),
    AcceleratorError("an unspecified failure"),
    RuntimeError(
        "The following operation failed in the TorchScript interpreter.\nTraceback of"
        " TorchScript (most recent call last):\nRuntimeError: CUDA error: unspecified failure"
    ),
    RuntimeError(
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 710: device-side assert triggered ; GPU=0"
    ),
    RuntimeError(
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node."
        " Name:'g' Status Message: CUDA error cudaErrorIllegalAddress:an illegal memory access"
    ),
    RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
    RuntimeError("INTERNAL: CUDA error: Failed to end stream capture: CUDA_ERROR_LAUNCH_FAILED"),
    RuntimeError("INTERNAL: Failed to synchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory"),
    RuntimeError("[700] Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS"),
]
FINE = [
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("shapes (2, 3) and (4,) do not fit"),
    RuntimeError("no such document: 'CUDA error: device-side assert triggered'"),
    ValueError("CUDA error: device-side assert triggered"),
    KeyError("CUDA error: device-side assert triggered"),
    wherry.InvalidRequest("the text 'CUDA error: device-side assert triggered' is too long"),
]


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.parametrize("error", LOST, ids=lambda error: str(error)[:40])
def test_a_sticky_error_is_known_by_its_text(error: Exception) -> None:
    assert broken_device(error)


@pytest.mark.parametrize("error", FINE, ids=lambda error: str(error)[:40])
def test_a_shortage_or_a_quotation_is_none(error: Exception) -> None:
    assert broken_device(error) == ""


def test_an_error_behind_the_models_own_counts() -> None:
    try:
        raise LOST[0]
    except RuntimeError as cause:
        own = ValueError("prediction failed")
        own.__cause__ = cause
    assert broken_device(own).startswith("CUDA error")


@pytest.mark.parametrize("works", [True, False])
def test_a_gpu_that_torch_uses_is_tried(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    def synchronize(number: int) -> None:
        if not works:
            raise AcceleratorError("CUDA error: device-side assert triggered")

    cuda: Any = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, synchronize=synchronize
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert bool(broken_device(LOST[0])) is not works
