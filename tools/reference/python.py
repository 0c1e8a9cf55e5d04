"""What do the pages about the Python names say?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import wherry
from tools.reference.definitions import Definition, Field, Method, define
from wherry.values.datatypes import DATATYPES
from wherry.values.errors import WherryError

#: Of `wherry`: what belongs together, in the order in which one meets it. Datatypes and errors
#: have tables below.
SECTIONS = {
    "Models": ["model", "Model", "Device", "pipeline", "gather", "in_order", "split_text"],
    "Models in this process": ["Runtime"],
    "Models behind a server": ["Server", "asgi", "Client"],
    "Images, audio and files": ["Image", "ImageSpec", "Audio", "AudioSpec", "File", "FileSpec"],
    "Settings": ["ModelConfig", "InstanceGroup", "QueuePolicy"],
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

The public names of `wherry`; those of [`wherry.testing`, `wherry.llm` and
`wherry.deploy`](python-modules.md) have a page of their own. [What an annotation may
be](annotations.md) says which types a model's inputs and outputs have, [what is
public](public-api.md) for how long a name keeps its meaning. Times are seconds, sizes bytes, shapes
those of one row, without the batch dimension, unless a name says otherwise.

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
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import numpy as np

import wherry
from app import sentiment
```
"""

MODULES_HEAD = """\
# Python: testing, language models, clusters

The public names beside those of [`wherry`](python.md) itself.

```python
# app.py
import wherry


@wherry.model(max_batch_size=32)
def sentiment(text: list[str]) -> list[str]:
    return ["POSITIVE" if "good" in one else "NEGATIVE" for one in text]
```

```python
import signal
from concurrent.futures import ThreadPoolExecutor

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

ERRORS_HEAD = """\
## Errors

All are a `wherry.WherryError`; [errors](errors.md) says whose move it is. In-process they are
raised, `wherry.Client` raises the same ones, and over HTTP and gRPC they are these codes.
`error.retry_after` is the seconds after which a repetition has a chance, where that is known.

```python
with wherry.Runtime(sentiment) as runtime:
    try:
        runtime.infer("sentiment", text=7)
    except wherry.InvalidRequest as error:
        seen = (error.http_status, isinstance(error, ValueError))

seen  # -> (400, True)
```

| error | also a | HTTP | gRPC | means |
|---|---|---|---|---|
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
    parts += ["\n", ERRORS_HEAD, *map(_error_row, ERRORS)]
    parts.append("\n`wherry.__version__` is the version, a string.\n")
    return "".join(parts)


def modules_page() -> str:
    """docs/reference/python-modules.md."""
    parts = [WRITTEN, MODULES_HEAD]
    for module, told in MODULES.items():
        parts.append(f"\n## `{module}`\n\n{told}\n")
        language = "py" if module in FOR_READING else "python"
        for name in public(module):
            parts += _entry(module, name, language)
    return "".join(parts)


def public(module: str) -> list[str]:
    """The names in a module's `__all__`; functions last."""
    names: Sequence[str] = __import__(module, fromlist=["__all__"]).__all__
    return sorted(names, key=lambda name: (name.islower(), name))


def _entry(module: str, name: str, language: str) -> Iterator[str]:
    found = define(module, name)
    assert found is not None, f"{module}.{name} is defined nowhere"
    yield f"\n### `{module}.{name}`\n\n```py\n{found.signature(f'{module}.{name}')}\n```\n\n"
    yield as_markdown(found.doc, language) + "\n"
    if not isinstance(found.node, ast.ClassDef):
        return
    own, others = split(found)
    fields = [field for owner in own for field in owner.fields()]
    if fields:
        yield from _fields(fields)
    if name == "ModelConfig":
        yield "\n[Configuration](configuration.md) has all of them with their units.\n"
    seen: set[str] = set()
    above = {base.node.name for base in found.ancestors()} - {owner.node.name for owner in own}
    for method in (method for owner in own for method in owner.methods()):
        # What only does again what a base class says needs no words of its own.
        if method.name not in seen and (method.doc or not above):
            seen.add(method.name)
            yield from _method(name, method, language)
    for other in others:
        yield f"\nHas also what [`wherry.{other}`](python.md#wherry{other.lower()}) has.\n"


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


def _fields(fields: Sequence[Field]) -> Iterator[str]:
    yield "\n| field | type | default | meaning |\n|---|---|---|---|\n"
    for field in fields:
        default = f"`{field.default}`" if field.default else ""
        cells = (f"`{field.name}`", f"`{field.type}`", default, field.meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _method(of: str, method: Method, language: str) -> Iterator[str]:
    yield f"\n**`{of}.{method.name}`**\n\n```py\n{method.signature}\n```\n"
    if method.doc:
        yield f"\n{as_markdown(method.doc, language)}\n"


def _error_row(name: str) -> str:
    error: type[WherryError] = getattr(wherry, name)
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    means = re.sub(r"\s+", " ", error.__doc__ or "")
    return f"| `wherry.{name}` | {bases} | {error.http_status} | `{error.grpc_code}` | {means} |\n"


def as_markdown(doc: str, language: str) -> str:
    """A docstring; what is indented in it is code."""
    parts: list[str] = []
    code = False
    for line in doc.splitlines():
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
