"""What of vLLM does the adapter use, and what does vLLM say that it takes?

    python -m tests.unit.llm.engine.vllm_api FOLDER

reads vLLM's sources out of a folder in which a wheel lies unpacked, without importing them, and
writes vllm_api.json: names, parameters and fields, and which of these must be given. The fakes of
the tests hold calls to what is written there.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Final

RECORD: Final = Path(__file__).with_name("vllm_api.json")
#: Classes by their files, and the methods that are called.
CLASSES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "v1/engine/llm_engine.py": {
        "LLMEngine": (
            "from_engine_args", "add_request", "abort_request", "step", "has_unfinished_requests",
            "get_metrics", "get_tokenizer", "add_lora", "remove_lora",
        )
    },
    "engine/arg_utils.py": {"EngineArgs": ()},
    "config/model.py": {"ModelConfig": ("get_vocab_size", "get_diff_sampling_param")},
    "config/reasoning.py": {"ReasoningConfig": ()},
    "sampling_params.py": {
        "SamplingParams": (), "StructuredOutputsParams": (), "RequestOutputKind": (),
    },
    "lora/request.py": {"LoRARequest": ()},
    "outputs.py": {"CompletionOutput": (), "RequestOutput": ("__init__",)},
    "logprobs.py": {"Logprob": ()},
    "inputs/engine.py": {"TokensInput": ()},
    "v1/metrics/reader.py": {"Counter": (), "Gauge": (), "Metric": ()},
    "platforms/interface.py": {"Platform": ("is_cpu",)},
    "exceptions.py": {"VLLMClientError": (), "VLLMValidationError": ("__init__",)},
}  # fmt: skip
#: Where modules are imported from, and what from them.
NAMES: Final = {
    "__init__.py": ("LLMEngine", "EngineArgs"),
    "config/__init__.py": ("ReasoningConfig",),
    "platforms/__init__.py": ("current_platform",),
}
METRICS: Final = "v1/metrics/loggers.py"


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def signature(name: str) -> Signature:
    """The parameters of a method, "LLMEngine.step", as vLLM has them."""
    parameters = [
        Parameter(one, getattr(Parameter, kind), default=Parameter.empty if must else None)
        for one, kind, must in recorded()["methods"][name]
    ]
    return Signature(parameters)


def fields(name: str) -> dict[str, bool]:
    """The fields of a class, and whether each must be given."""
    found: dict[str, bool] = recorded()["fields"][name]
    return found


def read(folder: Path) -> dict[str, Any]:
    package = folder / "vllm"
    methods, named = {}, {}
    for file, classes in CLASSES.items():
        for node in ast.walk(ast.parse((package / file).read_text())):
            if isinstance(node, ast.ClassDef) and node.name in classes:
                named[node.name] = dict(_fields(node))
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name in classes[node.name]:
                        methods[f"{node.name}.{one.name}"] = [*_parameters(one)]
    for file, names in NAMES.items():
        text = (package / file).read_text()
        assert all(re.search(rf"\b{name}\b", text) for name in names), file
    missing = {
        *(f"{one}.{m}" for classes in CLASSES.values() for one, ms in classes.items() for m in ms)
    } - methods.keys()
    assert not missing, f"vLLM has no {sorted(missing)}"
    info = next(folder.glob("vllm-*.dist-info"), None)
    return {
        "version": "" if info is None else info.name.split("-")[1].removesuffix(".dist"),
        "methods": methods,
        "fields": named,
        "metrics": sorted({*re.findall(r'name="(vllm:\w+)"', (package / METRICS).read_text())}),
    }


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            if not one.target.id.startswith("_"):
                yield one.target.id, one.value is None
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            yield one.targets[0].id, False


def _parameters(node: ast.FunctionDef) -> Iterator[tuple[str, str, bool]]:
    given = node.args
    least = len(given.args) - len(given.defaults)
    for place, one in enumerate(given.args):
        yield one.arg, "POSITIONAL_OR_KEYWORD", place < least
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield one.arg, "KEYWORD_ONLY", default is None


if __name__ == "__main__":
    found = read(Path(sys.argv[1]))
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    for key in ("methods", "fields"):
        inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found[key].items())
        lines[list(found).index(key)] = f' "{key}": {{\n{inner}\n }}'
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
