"""Which errors say that the device is lost for the process, and which do not?"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import wherry
from wherry.core.instances.device_errors import broken_by, broken_device, out_of_memory


class AcceleratorError(RuntimeError):
    """As torch's."""


class XGBoostError(ValueError):
    """As XGBoost's."""


XGBOOST, ORT = "[15:21:09] /workspace/src/", "[ONNXRuntimeError] : 11 : EP_FAIL : "

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
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("Triton Error [HIP]:  Code: 700, Messsage: an illegal memory access"),
    RuntimeError("misaligned address"),
    XGBoostError(
        XGBOOST + "common/cuda_context.cuh:22: CUDA error: an illegal memory access was encountered"
        "\nStack trace:\n  [bt] (0) libxgboost.so"
    ),
    XGBoostError(
        XGBOOST + "tree/updater_gpu_hist.cu:861: Exception in gpu_hist: "
        "[15:21:09] ../src/common/device_helpers.cuh:431: CUDA error 999: unknown error"
    ),
    XGBoostError("transform: failed to synchronize: cudaErrorUnknown: unknown error"),
    XGBoostError("after reduction step 1: cudaErrorAssert: device-side assert triggered"),
    RuntimeError(
        ORT + "Non-zero status code returned while running TRTKernel_graph_main_0 node. Name:'T_0'"
        " Status Message: TensorRT EP execution context enqueue failed."
    ),
    RuntimeError(
        ORT + "Non-zero status code returned while running FusedConv node. Name:'Conv_0'"
        " Status Message: /onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:129"
        " std::conditional_t<THRW, void, Status> onnxruntime::CudaCall(ERRTYPE, const char*)"
        " [with ERRTYPE = cudaError; bool THRW = true] CUDA failure 999: unknown error ; GPU=0"
    ),
    RuntimeError("[convolutionRunner.cpp::execute::391] Error Code 1: Cask (Cask convolution)"),
    RuntimeError("uncorrectable ECC error encountered"),
    RuntimeError("CUDA driver shutting down"),
    RuntimeError("an illegal instruction was encountered"),
    RuntimeError("cuBLAS error: CUBLAS_STATUS_EXECUTION_FAILED"),
    RuntimeError("merge_sort: failed to synchronize: cudaErrorIllegalAddress: an illegal memory"),
    RuntimeError("Error Code 1: Cuda Runtime (unspecified launch failure)"),
    RuntimeError("[700] Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS"),
    RuntimeError("[719] Call to cuLaunchKernel results in UNKNOWN_CUDA_ERROR"),
    RuntimeError("cuda runtime error (59) : device-side assert triggered at THCTensorMath.cu:24"),
    RuntimeError("cuFFT error: CUFFT_EXEC_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED, when calling `cusolverDn...`"),
    RuntimeError("cublasLt ran into an error!"),
    RuntimeError("cuBLAS failed with status CUBLAS_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA failed with error unknown error"),
    RuntimeError("rocBLAS error: rocblas_status_internal_error"),
    RuntimeError("miopenStatusInternalError"),
    RuntimeError(
        "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error, NCCL version 2.20.5\n"
        "Last error:\nCuda failure 700 'an illegal memory access was encountered'"
    ),
    RuntimeError(
        "[Rank 0] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory"
        " access was encountered"
    ),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running"
        " Gemm node. Name:'fc1' Status Message: /onnxruntime_src/onnxruntime/core/providers/cuda/"
        "cuda_call.cc:121 onnxruntime::CudaCall(ERRTYPE, const char*) [with ERRTYPE = cudaError]"
        " CUDA failure 719: unspecified launch failure ; GPU=0 ; expr=cudaMalloc((void**)&p, size);"
    ),
    RuntimeError(
        "[executionContext.cpp::executeInternal::626] Error Code 1: Cuda Runtime (an illegal memory"
        " access was encountered)"
    ),
    RuntimeError("IExecutionContext::enqueueV3: Error Code 1: Myelin ([c.cpp:exec:4] Platform (C"),
    RuntimeError("cuMemAlloc failed: an illegal memory access was encountered"),
    RuntimeError("cuCtxSynchronize failed: launch timeout"),
    RuntimeError("GPUassert: an illegal memory access was encountered foo.cu 33"),
    RuntimeError("the model's forward: CUDA assert: device-side assert triggered, it's index 99"),
    RuntimeError("INTERNAL: custom call failed: Failed to launch CUDA kernel: fusion_1 with grid"
                 " dimensions: 1x1x1: CUDA_ERROR_ILLEGAL_ADDRESS"),
    RuntimeError("CUDA error: operation not supported on global/shared address space"),
    RuntimeError("GPU sync failed"),
    RuntimeError("GPU 0000:01:00.0 has fallen off the bus"),
    RuntimeError("Memory access fault by GPU node-1 on address 0x54fc00000. Page not present"),
    OSError("(External) CUDA error(700), an illegal memory access was encountered."),
]  # fmt: skip


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


class ResourceExhaustedError(Exception):
    """As TensorFlow's."""


SHORT = [
    XGBoostError(
        XGBOOST
        + "common/device_helpers.cuh:431: Memory allocation error on worker 0: std::bad_alloc:"
        " cudaErrorMemoryAllocation: out of memory\n- Free memory: 1\n- Requested memory: 2"
    ),
    XGBoostError(XGBOOST + "common/device_helpers.cuh:22: CUDA error: out of memory"),
    RuntimeError(ORT + "TensorRT EP failed to create context."),
    RuntimeError(
        ORT + "TensorRT EP failed to create engine from network: Error Code 2: OutOfMemory"
        " (Requested size was 2147483648 bytes.)"
    ),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running"
        " Conv node. Name:'c' Status Message: /onnxruntime_src/onnxruntime/core/framework/"
        "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 3221225472"
    ),
    RuntimeError(
        "bfc_arena.cc:342 Available memory of 0 is smaller than requested bytes of 4294967296"
    ),
    RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc"),
    RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total of 16 GiB"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    RuntimeError("hipErrorOutOfMemory"),
    RuntimeError("miopenStatusAllocFailed"),
    OutOfMemoryError("Out of memory allocating 1,024 bytes (allocated so far: 0 bytes)."),
    RuntimeError("cudaErrorMemoryAllocation: out of memory"),
    RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB on device ordinal 0"),
    ResourceExhaustedError("OOM when allocating tensor with shape[64,512]"),
    RuntimeError("UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    RuntimeError("[GPU] clEnqueueNDRangeKernel, error code: -5 CL_OUT_OF_RESOURCES"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory:"
        " you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("Resource exhausted: Out \nof memory while trying to allocate 5520758552 bytes."),
    RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0"),
    RuntimeError("CUBLAS failure 3: the resource allocation failed ; GPU=0 ; hostname=x"),
    RuntimeError("IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime (out of memory)"),
    RuntimeError("Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)"),
    RuntimeError("[2] Call to cuMemAlloc results in UNKNOWN_CUDA_ERROR"),
    RuntimeError("cudaMalloc failed"),
    RuntimeError("RMM failure: Maximum pool size exceeded"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("the GPU ran out of VRAM"),
    MemoryError(),
]
#: The call alone was wrong.
REFUSED = [
    XGBoostError(XGBOOST + "c_api.cc:3: Check failed: id >= 0: CUDA error: invalid device ordinal"),
    AcceleratorError("CUDA error: invalid argument"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("CUDA error: too many resources requested for launch"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"),
    RuntimeError("CUDA error: operation not permitted when stream is capturing"),
    RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"),
    RuntimeError("cudaErrorInvalidDevice: invalid device ordinal"),
    RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument"),
    RuntimeError("HIP error: hipErrorNoBinaryForGpu"),
    RuntimeError("CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
]
FINE = [
    XGBoostError("feature_names mismatch: ['CUDA error: illegal memory access'] ['x']"),
    XGBoostError("Invalid parameter: 'CUDA error: unknown error'"),
    RuntimeError(ORT + "TensorRT EP input onnx model to ModelProto failed"),
    RuntimeError("misaligned addresses: 'Main St. 1', 'Main St. 2'"),
    RuntimeError("no such text: 'it's Triton Error [CUDA]: misaligned address'"),
    RuntimeError("no such text: CUDA error: unknown error"),
    RuntimeError('too long: "a device-side assert triggered"'),
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


@pytest.mark.parametrize("error", [*SHORT, *REFUSED, *FINE], ids=lambda error: str(error)[:40])
def test_a_shortage_a_refused_call_or_a_quotation_is_none(error: Exception) -> None:
    assert broken_device(error) == ""


@pytest.mark.parametrize("error", SHORT, ids=lambda error: str(error)[:40])
def test_a_lack_of_memory_is_known_in_the_words_of_each_library(error: Exception) -> None:
    assert out_of_memory(error)
    own = RuntimeError("prediction failed")
    own.__cause__ = error
    assert out_of_memory(own)


@pytest.mark.parametrize(
    "error",
    [*LOST, *REFUSED, *FINE, RuntimeError("out of resource: shared memory, Required: 262144")],
    ids=lambda error: str(error)[:40],
)
def test_other_errors_are_no_lack_of_memory(error: Exception) -> None:
    assert not out_of_memory(error)


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


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (lost := "RuntimeError: CUDA error: an illegal memory access", lost),
        ("cudaErrorIllegalAddress: x", "cudaErrorIllegalAddress: x"),
        ("ValueError: CUDA error: a client's words", ""),
        ("RuntimeError: CUDA error: out of memory", ""),
        ("RuntimeError: no such word", ""),
    ],
)  # fmt: skip
def test_of_another_process_an_errors_class_and_text_decide(text: str, broken: str) -> None:
    assert broken_by(text) == broken
