"""What is to be done with a model whose backend runs elsewhere only?

One line for each backend and platform of Triton that is not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ONNX_OF_TF: Final = (
    "convert the saved model with `python -m tf2onnx.convert --saved-model DIR --output model.onnx`"
    ' and say backend: "onnxruntime"'
)
_ENGINE: Final = (
    "a plan fits one GPU type and one TensorRT: serve the ONNX file that it was built from with"
    ' backend: "onnxruntime" (its gpu_execution_accelerator "tensorrt" builds the plan again)'
)
PROGRAM: Final = (
    'a compiled backend of your own cannot be loaded: write it as a model.py (backend: "python"),'
    " which may call the same library"
)
_PREPROCESSING: Final = (
    'write the pipeline as a model.py (backend: "python"), where nvidia-dali or numpy and Pillow do'
    " the same work"
)
_LLM: Final = (
    'serve the checkpoint itself: backend: "vllm" with its model.json, or `wherry serve llm:FOLDER`'
)
_SAMPLE: Final = (
    'it is one of Triton\'s examples: a model.py (backend: "python") of ten lines does it'
)

#: What to do, by the backend or platform.
INSTEAD: Final = {
    "tensorrt": _ENGINE,
    "tensorrt_plan": _ENGINE,
    "tensorflow": _ONNX_OF_TF,
    "tensorflow_graphdef": _ONNX_OF_TF.replace("--saved-model DIR", "--graphdef FILE")
    .replace("saved model", "graph")
    .replace("--output", "--inputs IN:0 --outputs OUT:0 --output"),
    "tensorflow_savedmodel": _ONNX_OF_TF,
    "dali": _PREPROCESSING,
    "dali_python": _PREPROCESSING,
    "tensorrtllm": _LLM,
    "fastertransformer": _LLM,
    "fastdeploy": "it runs ONNX, Paddle, OpenVINO and TensorRT files: an ONNX file is served with"
    ' backend: "onnxruntime" (paddle2onnx converts Paddle\'s)',
    "paddle": 'convert it with paddle2onnx, and say backend: "onnxruntime"',
    "armnn_tflite": "convert it with `python -m tf2onnx.convert --tflite FILE --output model.onnx`,"
    ' and say backend: "onnxruntime"',
    "caffe2": 'export it as ONNX, and say backend: "onnxruntime"',
    "caffe2_netdef": 'export it as ONNX, and say backend: "onnxruntime"',
    "onnx": 'say backend: "onnxruntime"',
    "stateful": 'say backend: "onnxruntime", and sequence_batching { state { ... } } for its state',
    "hugectr": PROGRAM,
    "hps": PROGRAM,
    "custom": PROGRAM,
    "bls": PROGRAM,
    "recommended": _SAMPLE,
    "minimal": _SAMPLE,
}

#: The backend of a model's file, where its name says that.
FILES: Final = {
    "model.plan": "tensorrt",
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow_graphdef",
    "model.dali": "dali",
    "model.pdmodel": "paddle",
    "model.tflite": "armnn_tflite",
}


def has_library(folder: str) -> bool:
    """Whether a model brings a compiled backend: a library beside its versions or in one."""
    found = Path(folder)
    return any(found.glob("libtriton_*.so")) or any(found.glob("*/libtriton_*.so"))
