"""What do the pages about the Python names say?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import wherry
from tools.reference.definitions import Definition, Field, Method, defined
from wherry.core.values.datatypes import DATATYPES
from wherry.core.values.errors import WherryError

#: Of `wherry`: what belongs together, in the order in which one meets it. Datatypes and errors
#: have tables below.
SECTIONS = {
    "Models": [
        "model",
        "Model",
        "Device",
        "pipeline",
        "gather",
        "in_order",
        "split_text",
        "progress",
    ],
    "Models in this process": ["Runtime"],
    "Models behind a server": ["Server", "asgi", "Client"],
    "Images, audio and files": ["Image", "ImageSpec", "Audio", "AudioSpec", "File", "FileSpec"],
    "Settings": ["ModelConfig", "ModelSettings", "InstanceGroup", "QueuePolicy"],
    "Models that work in steps": ["StepModel", "Step"],
    "Sequences": ["SequenceBatching", "SequenceControl", "SequenceState", "SequenceStep"],
}
ERRORS = [
    name
    for name in wherry.__all__
    if isinstance(found := getattr(wherry, name), type) and issubclass(found, WherryError)
]
#: The modules of the second page, and how they are told.
MODULES = {
    "wherry.testing": "Tests that wait for what happens, and for nothing else.",
    "wherry.llm": "Language models by wherry's own engine: `pip install 'wherry[llm]'`, and"
    " [how to serve one](../how-to/llm.md).",
    "wherry.deploy": "Models in Ray Serve: `pip install 'wherry[ray]'`, and"
    " [how to](../how-to/scale.md#ray-serve).",
}
#: Their examples need what a test has not: a checkpoint, a cluster.
FOR_READING = ("wherry.llm", "wherry.deploy")

WRITTEN = "<!-- Written by python -m tools.reference from the docstrings: change those. -->\n"

PYTHON = """\
# Python

The public names of `wherry`, `wherry.testing`, `wherry.llm` and `wherry.deploy`: see also
[annotations](annotations.md), [configuration](configuration.md), [errors](errors.md) and [what is
public](public-api.md). Times are in seconds, sizes in bytes; a shape is that of one row, without
the batch dimension. Methods have the first paragraph of their docstrings, and no types of their
arguments: the source has both.

The examples run in the order of this page, beside a server of this model:

```python
# app.py
import wherry


@wherry.model(max_batch_size=32)
def sentiment(text: list[str]) -> list[str]:
    return ["POSITIVE" if "good" in one else "NEGATIVE" for one in text]
```

```console
$ wherry serve app.py
```

```python
import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import numpy as np

import wherry
from app import sentiment
from wherry.testing import (
    GatedModel,
    ManualClock,
    ServerProcess,
    local_server,
    running_server,
)
```
"""

IMAGE = """\
### `wherry.Image`

Pillow's [`PIL.Image.Image`](https://pillow.readthedocs.io/), for annotations: the model's code has
each row as one. With `pip install 'wherry[image]'`; [settings](#wherryimagespec) go beside it.

```python
@wherry.model(max_batch_size=8)
def sizes(image: list[wherry.Image]) -> list[str]:
    return [f"{one.width} x {one.height}" for one in image]
```
"""

DATATYPES_HEAD = """\
## Datatypes

Names of the V2 protocol's datatypes, for annotations: `FP32` is a number a row, `FP32[384]` a
vector of 384 a row, `FP32[3, None]` two dimensions of which the second has any size.

```python
@wherry.model(max_batch_size=32)
def norm(vector: Annotated[np.ndarray, wherry.FP32[3]]) -> Annotated[np.ndarray, wherry.FP64]:
    return np.linalg.norm(vector, axis=1).astype(np.float64)


with wherry.Runtime(norm) as runtime:
    float(runtime.infer("norm", vector=[2, 3, 6]))  # -> 7.0
```

| name | numpy's dtype | bytes of an element on the wire |
|---|---|---|
"""


def python_page() -> str:
    """docs/reference/python.md."""
    parts = [WRITTEN, PYTHON]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += ["\n", IMAGE] if name == "Image" else _entry("wherry", name, "python")
    parts += ["\n", DATATYPES_HEAD]
    for datatype in DATATYPES.values():
        size = str(datatype.itemsize) if datatype.itemsize else "its length, and 4"
        parts.append(f"| `wherry.{datatype.name}` | `{datatype.dtype}` | {size} |\n")
    for module, told in MODULES.items():
        parts.append(f"\n## `{module}`\n\n{told}\n")
        for name in public(module):
            parts += _entry(module, name, "py" if module in FOR_READING else "python")
    parts.append("\n`wherry.__version__` is the version, a string.\n")
    return "".join(parts)


def public(module: str) -> list[str]:
    """The names in a module's `__all__`; functions last."""
    names: Sequence[str] = __import__(module, fromlist=["__all__"]).__all__
    return sorted(names, key=lambda name: (name.islower(), name))


def _entry(module: str, name: str, language: str) -> Iterator[str]:
    found = defined(module, name)
    yield f"\n### `{module}.{name}`\n\n"
    own, others = split(found) if isinstance(found.node, ast.ClassDef) else ([], [])
    fields = [field for owner in own for field in owner.fields()]
    if not (fields and found.is_record):
        yield f"```py\n{found.signature(f'{module}.{name}')}\n```\n\n"
    yield f"{as_markdown(found.doc, language)}\n\n[Source]({found.link}).\n"
    if name == "ModelConfig":
        yield "[Its fields](configuration.md#of-a-model) are the settings of a model.\n"
    elif fields:
        yield from fields_table(fields)
    seen: set[str] = set()
    above = {base.node.name for base in found.ancestors()} - {owner.node.name for owner in own}
    methods = []
    for method in (method for owner in own for method in owner.methods()):
        # What only does again what a base class says needs no words of its own.
        if method.name not in seen and (method.doc or not above):
            seen.add(method.name)
            methods.append(method)
    if methods:
        yield "\n| method | |\n|---|---|\n"
        yield from map(_method, methods)
    for other in others:
        yield f"\nHas also what [`wherry.{other}`](#wherry{other.lower()}) has.\n"


def split(found: Definition) -> tuple[list[Definition], list[str]]:
    """The class with its bases that are not public, and the names of those that are."""
    own, others = [found], []
    for base in found.bases:
        if base.node.name in wherry.__all__:
            others.append(base.node.name)
        else:
            inherited, above = split(base)
            own, others = own + inherited, others + above
    return own, others


def fields_table(fields: Sequence[Field]) -> Iterator[str]:
    yield "\n| field | meaning |\n|---|---|\n"
    seen: dict[str, Field] = {}
    for one in fields:  # a class's own before those of its bases
        seen.setdefault(one.name, one)
    yield from map(_field, seen.values())


def _field(one: Field) -> str:
    default = f" = {one.default}" if one.default and not one.default.startswith("field(") else ""
    return f"| {_code(f'{one.name}: {one.type}{default}')} | {cell(one.meaning)} |\n"


def _method(one: Method) -> str:
    told = one.doc.partition("\n\n")[0]
    return f"| {_code(one.short)} | {cell(told)} |\n"


def _code(text: str) -> str:
    return f"`{cell(text)}`"


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def as_markdown(doc: str, language: str) -> str:
    """A docstring; what is indented in it is code."""
    parts: list[str] = []
    code = False
    for line in doc.replace("For example:\n\n", "").splitlines():
        if line.startswith("    ") and not code and (not parts or parts[-1] == ""):
            parts.append(f"```{language}")
            code = True
        elif code and line and not line.startswith("    "):
            while parts[-1] == "":
                parts.pop()
            parts += ["```", ""]
            code = False
        parts.append(line.removeprefix("    ") if code else line)
    return "\n".join([*parts, "```"] if code else parts)
