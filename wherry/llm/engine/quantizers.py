"""What does transformers need for a checkpoint's quantized weights, and is it here? Pure.

transformers takes a method that it does not know for plain floats, and asks for packages while it
loads, one after the other. So both are looked up before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wherry.llm.engine.known import QUANTIZED

#: The field that transformers reads, of a configuration or of its part for texts.
READ: Final = QUANTIZED[0]
ANOTHER: Final = "use a checkpoint of floats, or --engine vllm on a GPU"
#: Other programs' files: transformers does not look at them.
FILES: Final = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


@dataclass(frozen=True, slots=True)
class Quantizer:
    """A method of transformers: the packages to install for it, and whether it needs a GPU."""

    packages: tuple[str, ...] = ()
    needs_gpu: bool = False


#: By the name that transformers gives the method. Those without packages need only torch.
QUANTIZERS: Final[Mapping[str, Quantizer]] = {
    "aqlm": Quantizer(("aqlm",)),
    "auto-round": Quantizer(("auto-round",)),
    "awq": Quantizer(("gptqmodel",)),
    "bitnet": Quantizer(),
    "bitsandbytes_4bit": Quantizer(("bitsandbytes",)),
    "bitsandbytes_8bit": Quantizer(("bitsandbytes",)),
    "compressed-tensors": Quantizer(("compressed-tensors",)),
    "eetq": Quantizer(("kernels",), needs_gpu=True),
    "fbgemm_fp8": Quantizer(("fbgemm-gpu",), needs_gpu=True),
    "fouroversix": Quantizer(("fouroversix",)),
    "fp8": Quantizer(),
    "fp_quant": Quantizer(("fp_quant",), needs_gpu=True),
    "gemma": Quantizer(),
    "gptq": Quantizer(("optimum", "gptqmodel")),
    "higgs": Quantizer(("flute-kernel", "fast_hadamard_transform"), needs_gpu=True),
    "metal": Quantizer(),
    "mxfp4": Quantizer(),
    "mxfp8": Quantizer(),
    "quark": Quantizer(("amd-quark",)),
    "sinq": Quantizer(("sinq",)),
    "spqr": Quantizer(("spqr_quant",), needs_gpu=True),
    "torchao": Quantizer(("torchao",)),
    "vptq": Quantizer(("vptq",), needs_gpu=True),
}
#: Methods by which transformers quantizes floats as it loads them, or reads another format: it
#: loads no folder whose weights are quantized by them (hqq: not since 5.0).
NOT_LOADED: Final = ("gguf", "hqq", "nvfp4", "quanto")
PACKAGES: Final = frozenset(name for one in QUANTIZERS.values() for name in one.packages)


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are quantized: by what, and where its files say so."""

    #: As transformers names it; "" if the files name none.
    method: str
    declared_in: str = READ

    def __str__(self) -> str:
        return self.method or "an unnamed method"


def quantization_of(config: Mapping[str, Any], files: Collection[str]) -> Quantization | None:
    """What a config.json, or a file beside it, says of its weights; None if they are floats."""
    for name, declared in _declared(config):
        method = declared.get("quant_method") if isinstance(declared, dict) else None
        for bits in ("4", "8"):  # transformers looks at these first
            if isinstance(declared, dict) and declared.get(f"load_in_{bits}bit") is True:
                method = f"bitsandbytes_{bits}bit"
                break
        return Quantization(method[:40] if isinstance(method, str) else "", name)
    return next((Quantization("", name) for name in FILES if name in files), None)


def _declared(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that tell of quantized weights, the one that transformers reads first."""
    text = config.get("text_config")
    for name in QUANTIZED:
        for part in (config, text if isinstance(text, dict) else {}):
            if part.get(name) is not None:
                yield name, part[name]


def problem(declared: Quantization, installed: Collection[str], *, gpu: bool) -> str:
    """Why transformers would not load such weights here, with the remedy; "" if it would."""
    if declared.declared_in != READ:
        return (
            f"{declared.declared_in}: transformers looks for quantized weights in config.json's"
            f" {READ} only, and would take these for floats: write it there, with its quant_method"
        )
    known = QUANTIZERS.get(declared.method)
    if known is None:
        named = (
            f"quant_method = {declared.method!r}" if declared.method else "it names no quant_method"
        )
        why = (
            "transformers does not load it from a folder"
            if declared.method in NOT_LOADED
            else "transformers has no quantizer of this name, and would take the weights for floats"
        )
        return f"{READ}: {named}: {why}: {ANOTHER}"
    if known.needs_gpu and not gpu:
        return f"{READ}: {declared.method}: transformers needs a GPU for it: {ANOTHER}"
    if missing := [name for name in known.packages if name not in installed]:
        return f"{READ}: {declared.method} needs more packages: pip install {' '.join(missing)}"
    return ""
