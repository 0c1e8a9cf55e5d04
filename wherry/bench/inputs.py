"""Which rows are sent (the model's own examples, a file's, a program's, or made up from its
metadata), and how do they become the bytes of a request, for each protocol?
"""

from __future__ import annotations

import glob
import itertools
import mimetypes
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from wherry.bench.connection import Encoded
from wherry.core.api import (
    BOOL,
    BYTES,
    ConfigError,
    Form,
    ModelDescription,
    Tensor,
    import_file,
    import_from,
    infer_body,
)

Row = dict[str, Any]
T = TypeVar("T")

#: Suffixes of files that are one row, not lines of text.
MEDIA: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".wav", ".mp3", ".flac", ".ogg")
#: Rows that are made up, or taken from a generator that does not end.
MOST_ROWS = 1000

#: With their spaces they have 4.6 characters on average, as in English texts.
WORDS: Final = (
    "the", "of", "a", "to", "in", "is", "it", "that", "was", "for", "on", "are", "with", "they",
    "be", "at", "one", "have", "this", "from", "by", "word", "but", "what", "some", "we", "can",
    "other", "were", "there", "when", "use", "your", "water", "people", "number", "first", "make",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts, uniform between `low` and `high`, in characters or words."""

    low: int = 20
    high: int = 100
    unit: str = "characters"

    def draw(self, draw: random.Random) -> int:
        return draw.randint(self.low, self.high)


def lengths(text: str) -> Lengths:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?(w|words)?", text.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if match is None or not 1 <= low <= high:
        raise ConfigError(
            f"{text!r} is not a length of texts; write for example 300, 100-800 (characters), the"
            " shorter one first, or 5-120w (words)"
        )
    return Lengths(low, high, "words" if match[3] else "characters")


def text_of(length: int, unit: str, draw: random.Random) -> str:
    """Words in random order, `length` of them, or of characters."""
    if unit == "words":
        return " ".join(draw.choices(WORDS, k=length))
    # The shortest word and its space have 2 characters.
    text = " ".join(draw.choices(WORDS, k=length // 2 + 1))
    return text[:length].rstrip().ljust(length, "s")


def made_up(
    model: ModelDescription,
    *,
    text: Lengths | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    count: int = MOST_ROWS,
    seed: int = 0,
) -> list[Row]:
    """Rows that fit the model's metadata: random texts and numbers. At most 64 MB of them."""
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    text, shapes = text or Lengths(), shapes or {}
    for name in shapes:
        if name not in [tensor.name for tensor in model.inputs]:
            known = ", ".join(tensor.name for tensor in model.inputs)
            raise ConfigError(
                f"model {model.name!r} has no input {name!r} to shape; it has: {known}"
            )
    concrete = {t.name: _shape(t, shapes.get(t.name), model.name) for t in model.inputs}
    bytes_of_a_row = sum(8 * int(np.prod(shape, dtype=float)) for shape in concrete.values())
    count = max(1, min(count, 64 * 2**20 // max(1, bytes_of_a_row)))
    return [
        {t.name: _value(t, concrete[t.name], text, draw, numbers) for t in model.inputs}
        for _ in range(count)
    ]


def _shape(tensor: Tensor, values_of: tuple[int, ...] | None, model: str) -> tuple[int, ...]:
    if values_of is not None:
        fits = len(values_of) == len(tensor.shape) and all(
            dimension in (-1, size) for dimension, size in zip(tensor.shape, values_of, strict=True)
        )
        if not fits:
            raise ConfigError(
                f"model {model!r}: a row of input {tensor.name!r} is {list(tensor.shape)}, which"
                f" {list(values_of)} does not fit"
            )
        return values_of
    if -1 in tensor.shape:
        example = ",".join("16" if d == -1 else str(d) for d in tensor.shape)
        raise ConfigError(
            f"model {model!r}: input {tensor.name!r} is {list(tensor.shape)}; set the"
            f" open dimensions, for example --shape {tensor.name}={example}"
        )
    return tensor.shape


def _value(
    tensor: Tensor,
    shape: tuple[int, ...],
    text: Lengths,
    draw: random.Random,
    numbers: np.random.Generator,
) -> Any:
    if tensor.datatype is BYTES:
        if tensor.form is Form.JSON:
            return {"text": text_of(text.draw(draw), text.unit, draw)}
        size = 1 if tensor.is_scalar else int(np.prod(shape))
        texts = [text_of(text.draw(draw), text.unit, draw) for _ in range(size)]
        return texts[0] if tensor.is_scalar else texts
    dtype = tensor.datatype.dtype
    if tensor.datatype is BOOL:
        values: Any = numbers.integers(0, 2, shape).astype(bool)
    elif dtype.kind in "iu":
        # Small ones, as for tokens or pixels: a large index may be out of range.
        values = numbers.integers(0, 100, shape).astype(dtype)
    else:
        values = numbers.random(shape, np.float32).astype(dtype)
    return values.item() if shape in ((), (1,)) and tensor.is_scalar else values


def prompts(text: Lengths, *, count: int = MOST_ROWS, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [text_of(text.draw(draw), text.unit, draw) for _ in range(count)]


def from_file(path: str) -> list[Any]:
    """Read the value of each line of a JSONL file; other files are text, a row a line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"inputs {path}: {error}") from None
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not path.endswith((".jsonl", ".json", ".ndjson")):
            rows.append(line)
            continue
        try:
            rows.append(msgspec.json.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigError(f"inputs {path}, line {number}: {error}") from None
    if not rows:
        raise ConfigError(f"inputs {path}: there is not one row in it")
    return rows


def from_program(target: str, count: int = MOST_ROWS) -> list[Any]:
    """Read at most `count` rows that the function `file.py:function` yields or returns."""
    where, _, name = target.rpartition(":")
    path = Path(where)
    if not path.is_file():
        raise ConfigError(f"inputs {target}: no file {where}")
    import_from(str(path.resolve().parent))
    try:
        function = getattr(import_file(f"_inputs_{path.stem}", where), name, None)
        if not callable(function):
            raise ConfigError(f"inputs {target}: {path.name} has no function {name!r}")
        rows = list(itertools.islice(_checked(function(), target), count))
    except ConfigError:
        raise
    except Exception as error:  # the user's code: anything may come
        raise ConfigError(f"inputs {target} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not rows:
        raise ConfigError(f"inputs {target}: it yielded no row")
    return rows


def _checked(made: Any, target: str) -> Iterable[Any]:
    if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        raise ConfigError(f"inputs {target}: expected rows, yielded or in a list, not {made!r:.80}")
    return made


def _files(source: str) -> list[str] | None:
    """The files of a folder or of a pattern, in order; None: it is neither."""
    path = Path(source)
    if not path.is_dir() and (path.exists() or not glob.has_magic(source)):
        return None
    pattern = str(path / "*") if path.is_dir() else source
    return sorted(found for found in glob.glob(pattern) if Path(found).is_file())[:MOST_ROWS]


def media_type(source: str) -> str:
    """The media type of a file, or of the first of several, by its name; "" if it has none."""
    first = next(iter(_files(source) or ()), source)
    return mimetypes.guess_type(first)[0] or ""


def values_of(source: str) -> list[Any]:
    """Rows from a file, from the files of a folder or a pattern, or from `file.py:function`."""
    if re.search(r"\.py:\w+$", source):
        return from_program(source)
    files = _files(source)
    if files is None:
        if not source.lower().endswith(MEDIA):
            return from_file(source)
        files = [source]
    if not files:
        raise ConfigError(f"inputs {source}: there is not one file")
    try:
        return [Path(path).read_bytes() for path in files]
    except OSError as error:
        raise ConfigError(f"inputs {source}: {error}") from None


def as_rows(values: Iterable[Any], model: ModelDescription) -> list[Row]:
    """Values as rows of the model: a dict by input name, or the value of its only input."""
    names = [tensor.name for tensor in model.inputs]
    rows = []
    for value in values:
        if isinstance(value, dict) and set(value) <= set(names):
            rows.append(value)
        elif len(names) == 1 and not isinstance(value, dict):
            rows.append({names[0]: value})
        else:
            expected = ", ".join(f'"{name}": ...' for name in names)
            raise ConfigError(
                f"the row {str(value)[:80]!r} does not fit model {model.name!r};"
                f" write {{{expected}}}"
            )
    return rows


def batches(rows: list[T], size: int, most: int = 10_000) -> list[list[T]]:
    """Requests of `size` rows each; every row is in the same number of them."""
    if size == 1:
        return [[row] for row in rows[:most]]
    count = len(rows) // int(np.gcd(len(rows), size))
    cycle = itertools.cycle(rows)
    return [[next(cycle) for _ in range(size)] for _ in range(min(count, max(1, most // size)))]


Headers = Mapping[str, str]


def encoded(
    method: str, path: str, host: str, headers: Headers, body: bytes, rows: int = 1
) -> Encoded:
    """A request with its head. Headers win over the defaults."""
    lines = {"Host": host, "User-Agent": "wherry-bench", "Accept": "*/*"}
    if body or method in ("POST", "PUT", "PATCH"):
        lines["Content-Length"] = str(len(body))
    known = {name.lower(): name for name in lines}
    for name, value in headers.items():
        lines.pop(known.get(name.lower(), ""), None)
        lines[name] = value
    for name, value in {"request target": path, **lines}.items():
        if any(c in f"{name}{value}" for c in "\r\n\0"):
            raise ConfigError(f"{name}: {value!r} cannot stand in a request")
    head = f"{method} {path or '/'} HTTP/1.1\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in lines.items()
    )
    return Encoded(head.encode("latin-1", "replace") + b"\r\n" + body, rows)


def infer_request(
    model: ModelDescription, rows: Sequence[Row], *, binary: bool = True
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a V2 infer request; with `binary` numbers travel as binary tensors."""
    columns = columns_of(rows)
    if binary:
        body, json_length = infer_body(model, columns, {})
        return body, {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(json_length),
        }
    inputs = []
    for member, raw in tensors(model, rows):
        if raw is not None and member["datatype"] == "BYTES":
            raise ConfigError("bytes that are not text cannot travel as JSON; send them as binary")
        if raw is not None:
            member["data"] = np.asarray(columns[member["name"]]).ravel().tolist()
        inputs.append(member)
    return msgspec.json.encode({"inputs": inputs}), {"Content-Type": "application/json"}


def tensors(
    model: ModelDescription, rows: Sequence[Row]
) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """Each input as a client describes it, and its bytes; None: its texts are in `data`."""
    body, length = infer_body(model, columns_of(rows), {})
    for member in msgspec.json.decode(body[:length])["inputs"]:
        size = member.pop("parameters", {}).get("binary_data_size")
        yield member, None if size is None else body[length : length + size]
        length += size or 0


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    names = list(rows[0])
    for row in rows:
        if list(row) != names and set(row) != set(names):
            raise ConfigError(
                f"rows of one request must have the same inputs: {sorted(row)} and {sorted(names)}"
            )
    return {name: [row[name] for row in rows] for name in names}


def generate(row: Row) -> bytes:
    """The body of generate and generate_stream: inputs by name."""
    return msgspec.json.encode(row, enc_hook=_plain)


def generation(
    protocol: str, row: Any, model: str, *, stream: bool, max_tokens: int | None
) -> bytes:
    """A request of chat or completions: a body with `messages` (or `prompt`), or a prompt."""
    whole = "prompt" if protocol == "completions" else "messages"
    if isinstance(row, dict) and whole in row:
        body = {"model": model, **row}
    else:
        text = prompt_of(row)
        prompt = text if whole == "prompt" else [{"role": "user", "content": text}]
        body = {"model": model, whole: prompt}
    if max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & set(body):
        body["max_tokens"] = max_tokens
    if stream:
        body["stream"] = True
        body.setdefault("stream_options", {"include_usage": True})
    return msgspec.json.encode(body)


def embedding(rows: Sequence[Any], model: str) -> bytes:
    if len(rows) == 1 and isinstance(rows[0], dict) and "input" in rows[0]:
        return msgspec.json.encode({"model": model, **rows[0]})
    texts = [prompt_of(row) for row in rows]
    return msgspec.json.encode({"model": model, "input": texts if len(texts) > 1 else texts[0]})


def prompt_of(row: Any) -> str:
    """A row's text for an OpenAI route: the row itself, or one of its members."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for name in ("prompt", "text", "input", "content"):
            if isinstance(row.get(name), str):
                return str(row[name])
    raise ConfigError(
        f"the row {str(row)[:80]!r} is not a prompt; write a text, or an object with `prompt`,"
        " `messages` or `input`"
    )


def body_of(value: Any) -> bytes:
    """A plain URL's body: text and bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ConfigError(f"{value!r:.80} cannot travel as JSON")
