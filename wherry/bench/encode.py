"""How do rows become the bytes of a request, for each protocol? (Pure.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from wherry.bench.connection import Encoded
from wherry.bench.inputs import Row
from wherry.core.api import BYTES, ConfigError, ModelDescription, infer_body

Headers = Mapping[str, str]


def http(
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


def infer(
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
    for tensor in model.inputs:
        if tensor.name not in columns:
            continue
        values = columns[tensor.name]
        if tensor.datatype is not BYTES:
            array = np.asarray(values)
            shape, data = list(array.shape), array.ravel().tolist()
        else:
            flat = [
                element for row in values for element in (row if isinstance(row, list) else [row])
            ]
            shape = [len(values)]
            data = [element if isinstance(element, str) else _json(element) for element in flat]
        if len(shape) == 1:
            shape = tensor.shape_of(len(values), len(data))
        inputs.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype.name,
                "shape": shape if model.batched else shape[1:] or [1],
                "data": data,
            }
        )
    return msgspec.json.encode({"inputs": inputs}), {"Content-Type": "application/json"}


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Rows as columns; all rows have the same inputs."""
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


def chat(row: Any, model: str, *, stream: bool, max_tokens: int | None) -> bytes:
    """A chat request: a body with `messages`, or a prompt."""
    if isinstance(row, dict) and "messages" in row:
        body = dict(row)
    else:
        body = {"messages": [{"role": "user", "content": prompt_of(row)}]}
    return _openai(body, model, stream, max_tokens)


def completion(row: Any, model: str, *, stream: bool, max_tokens: int | None) -> bytes:
    body = dict(row) if isinstance(row, dict) and "prompt" in row else {"prompt": prompt_of(row)}
    return _openai(body, model, stream, max_tokens)


def message(row: Any, model: str, *, stream: bool, max_tokens: int | None) -> bytes:
    """A request to Anthropic's messages: a body with `messages`, or a prompt."""
    if isinstance(row, dict) and "messages" in row:
        body = {"model": model, **row}
    else:
        body = {"model": model, "messages": [{"role": "user", "content": prompt_of(row)}]}
    if max_tokens is not None:
        body.setdefault("max_tokens", max_tokens)  # Anthropic's must have it
    return msgspec.json.encode(body | ({"stream": True} if stream else {}))


def anthropic_headers(api_key: str | None) -> dict[str, str]:
    """What Anthropic's own server must have. A key goes as a bearer's, too, for others."""
    key = {"X-Api-Key": api_key} if api_key else {}
    return {"Anthropic-Version": "2023-06-01", **key}


#: The writer of a request of one prompt, by protocol.
PROMPTS: Final = {"chat": chat, "completions": completion, "messages": message}


def embedding(rows: Sequence[Any], model: str) -> bytes:
    if len(rows) == 1 and isinstance(rows[0], dict) and "input" in rows[0]:
        return msgspec.json.encode({"model": model, **rows[0]})
    texts = [prompt_of(row) for row in rows]
    return msgspec.json.encode({"model": model, "input": texts if len(texts) > 1 else texts[0]})


def prompt_of(row: Any) -> str:
    """The text of a row for an OpenAI route: it is one, or has one."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for name in ("prompt", "text", "input", "content"):
            if isinstance(row.get(name), str):
                return str(row[name])
    raise ConfigError(
        f"the row {str(row)[:80]!r} is no prompt; write a text, or an object with `prompt`,"
        " `messages` or `input`"
    )


def body_of(value: Any) -> bytes:
    """A plain URL's body: text and bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=_plain)


def _openai(body: dict[str, Any], model: str, stream: bool, max_tokens: int | None) -> bytes:
    body = {"model": model, **body}
    if max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & set(body):
        body["max_tokens"] = max_tokens
    if stream:
        body["stream"] = True
        body.setdefault("stream_options", {"include_usage": True})
    return msgspec.json.encode(body)


def _json(value: Any) -> str:
    if isinstance(value, bytes):
        raise ConfigError("bytes that are no text cannot travel as JSON; send them as binary")
    return msgspec.json.encode(value).decode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ConfigError(f"{value!r:.80} cannot travel as JSON")
