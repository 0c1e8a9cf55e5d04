"""Which server is this, which of its models is meant, and what are its requests?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from wherry.bench import inputs, over_grpc
from wherry.bench.connection import Encoded, Wire
from wherry.bench.inputs import Lengths
from wherry.bench.observe import (
    Address,
    HttpControl,
    NotThere,
    Observer,
    Unreachable,
    address,
    over_http,
)
from wherry.core.api import ConfigError, ModelDescription, describe

Protocol = Literal[
    "infer", "generate", "generate_stream", "chat", "completions", "embeddings", "http", "grpc"
]  # fmt: skip

#: Ends of a URL's path by which its protocol is known.
PATHS: Final[Mapping[str, Protocol]] = {
    "/infer": "infer",
    "/generate": "generate",
    "/generate_stream": "generate_stream",
    "/chat/completions": "chat",
    "/completions": "completions",
    "/embeddings": "embeddings",
}

#: Where OpenAI has its routes.
ROUTES: Final[Mapping[str, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The user's settings of the requests; None: found out from the server."""

    protocol: Protocol | None = None
    model: str | None = None
    #: A file, or `file.py:function`.
    inputs: str | None = None
    text: Lengths | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: V2: numbers as binary tensors.
    binary: bool = True
    #: OpenAI: stream, and the maximum number of tokens.
    stream: bool = True
    max_tokens: int | None = 128
    method: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: A plain URL's body; `@path` reads it from a file.
    body: str | None = None
    api_key: str | None = None
    ssl_ca: str | None = None
    insecure: bool = False
    seed: int = 0

    def all_headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {**key, **self.headers}


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is known, and the requests for it."""

    protocol: Protocol
    address: Address
    wire: Wire
    #: Makes the requests, each with this number of rows.
    requests: Callable[[int], list[Encoded]]
    model: str | None = None
    #: Where the rows come from, in a few words.
    source: str = ""
    #: Makes an observer of the server, from the id of its process if that is known.
    observer: Callable[[int | None], Observer] = lambda pid: Observer(pid=pid)


def find(url: str, sending: Sending) -> Target:
    """Find out what the server is. Unreachable, or ConfigError that names what is missing."""
    where = address(url)
    if where.scheme.startswith("grpc"):
        return _grpc(where, sending)
    control = HttpControl(where, sending.all_headers(), sending.ssl_ca, sending.insecure)
    protocol = sending.protocol or _by_path(where.path) or _by_probing(control, sending)
    if protocol != "http" and (sending.body is not None or sending.method is not None):
        raise ConfigError(
            f"{url}: --body and --method are for a plain URL, and {protocol} makes its own;"
            " pass its rows with --inputs, or use --protocol http"
        )
    if protocol == "http":
        return _plain(where, sending)
    if protocol in ROUTES:
        return _openai(where, control, sending, protocol)
    return _v2(where, control, sending, protocol)


def _by_path(path: str) -> Protocol | None:
    bare = path.partition("?")[0].rstrip("/")
    for end, protocol in PATHS.items():
        if bare.endswith(end):
            return protocol
    if bare.endswith("/v1/messages"):
        raise ConfigError(
            f"{path}: tokens and errors within Anthropic's streams are not read; measure"
            " /v1/chat/completions of the same model, or use --protocol http"
        )
    return "http" if bare and not bare.startswith("/v2") else None


def _by_probing(control: HttpControl, sending: Sending) -> Protocol:
    if sending.body is not None or sending.method is not None:
        return "http"
    for path, protocol in (("/v2", "infer"), ("/v1/models", "chat")):
        try:
            control.json(path)
        except NotThere:
            continue
        return protocol  # type: ignore[return-value]
    return "http"


def _wire(where: Address, sending: Sending, reads: str) -> Wire:
    return where.wire(reads=reads, ssl_ca=sending.ssl_ca, insecure=sending.insecure)


# V2


def _v2(where: Address, control: HttpControl, sending: Sending, protocol: Protocol) -> Target:
    name = sending.model or _model_in(where.path) or _only_model(control)
    name, _, version = name.partition(":")
    path = f"/v2/models/{quote(name, safe='')}"
    if version:
        path += f"/versions/{quote(version, safe='')}"
    model = model_of(control, path)
    if protocol == "infer" and model.streams and sending.protocol is None:
        protocol = "generate_stream"
    rows, source = rows_for(model, sending, lambda: examples_of(control, name))
    headers = sending.all_headers()

    def requests(size: int) -> list[Encoded]:
        made = []
        for batch in inputs.batches(rows, size):
            if protocol == "infer":
                body, more = inputs.infer_request(model, batch, binary=sending.binary)
            elif size == 1:
                body, more = inputs.generate(batch[0]), {"Content-Type": "application/json"}
            else:
                raise ConfigError(f"{protocol} takes one row a request, not {size}")
            more |= headers
            made.append(inputs.encoded("POST", f"{path}/{protocol}", where.name, more, body, size))
        return made

    return Target(
        protocol,
        where,
        _wire(where, sending, "v2_events" if protocol == "generate_stream" else "status"),
        requests,
        model.name,
        source,
        lambda pid: over_http(control, f"{path}/stats", f"{path}/batching", pid),
    )


def _model_in(path: str) -> str | None:
    parts = path.split("/")
    if len(parts) > 3 and parts[1:3] == ["v2", "models"]:
        version = f":{parts[5]}" if len(parts) > 5 and parts[4] == "versions" else ""
        return parts[3] + version
    return None


def _only_model(control: HttpControl) -> str:
    names = model_names(control)
    if len(names) == 1:
        return names[0]
    raise _which_model(control.address.url, names)


def _which_model(url: str, names: list[str]) -> ConfigError:
    found = f"it has: {', '.join(names)}" if names else "the server lists none"
    return ConfigError(f"{url}: choose a model with --model; {found}")


def model_names(control: HttpControl) -> list[str]:
    """The server's models, as wherry and as Triton list them."""
    try:
        return sorted({entry["name"] for entry in control.json("/v2/models")["models"]})
    except (NotThere, KeyError, TypeError):
        pass
    try:
        return sorted({e["name"] for e in control.json("/v2/repository/index", method="POST")})
    except (NotThere, KeyError, TypeError):
        return []


def model_of(control: HttpControl, path: str) -> ModelDescription:
    """Describe a model by Triton's configuration, or else by the protocol's own metadata."""
    try:
        return describe(control.json(f"{path}/config"))
    except (NotThere, KeyError, TypeError, ValueError):
        pass
    try:
        return described_by(control.json(path))
    except NotThere as error:
        raise ConfigError(f"{control.address.url}: {error}") from None
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} of {control.address.url}: no V2 metadata: {error}") from None


def described_by(metadata: Mapping[str, Any]) -> ModelDescription:
    """Describe a model by the protocol's own metadata: a first dimension of -1 counts rows."""
    first = metadata["inputs"][0]["shape"] if metadata["inputs"] else []
    batched = bool(first) and first[0] == -1

    def member(tensor: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": tensor["name"],
            "data_type": f"TYPE_{tensor['datatype']}",
            "dims": tensor["shape"][1:] if batched else tensor["shape"],
        }

    return describe(
        {
            "name": metadata["name"],
            "max_batch_size": int(batched),
            "input": [member(tensor) for tensor in metadata["inputs"]],
            "output": [member(tensor) for tensor in metadata.get("outputs", ())],
        }
    )


def examples_of(control: HttpControl, name: str) -> list[inputs.Row]:
    try:
        entries = control.json("/v2/models")["models"]
        found = [entry for entry in entries if entry["name"] == name]
        return [dict(row) for entry in found for row in entry["examples"]]
    except (NotThere, Unreachable, KeyError, TypeError):
        return []


def rows_for(
    model: ModelDescription, sending: Sending, examples: Callable[[], list[inputs.Row]]
) -> tuple[list[inputs.Row], str]:
    if sending.inputs is not None:
        return inputs.as_rows(inputs.values_of(sending.inputs), model), sending.inputs
    if sending.text is None and not sending.shapes and (found := examples()):
        return found, "the model's examples"
    made = inputs.made_up(model, text=sending.text, shapes=sending.shapes, seed=sending.seed)
    return made, "made up from the model's metadata"


# V2 over gRPC


def _grpc(where: Address, sending: Sending) -> Target:
    over_grpc.check_installed()
    wire = over_grpc.wire_to(where, sending.all_headers(), sending.ssl_ca, sending.insecure)
    control = over_grpc.GrpcControl(where, wire)
    named = sending.model
    if named is None:
        names = control.model_names()
        if len(names) != 1:
            raise _which_model(where.url, names)
        named = names[0]
    name, _, version = named.partition(":")
    try:
        model = described_by(control.metadata(name, version))
    except NotThere as error:
        raise ConfigError(f"{where.url}: {error}") from None
    rows, source = rows_for(model, sending, list)

    def requests(size: int) -> list[Encoded]:
        made = inputs.batches(rows, size)
        return [over_grpc.encode(control.schema, model, version, batch) for batch in made]

    watching = over_grpc.GrpcControl(where, wire, timeout=1.0)
    if control.streams(name, version):
        wire = msgspec.structs.replace(wire, reads="grpc_stream")
    return Target(
        "grpc", where, wire, requests, model.name, source,
        lambda pid: Observer(lambda: watching.statistics(name, version), pid=pid),
    )  # fmt: skip


# OpenAI


def _openai(where: Address, control: HttpControl, sending: Sending, protocol: Protocol) -> Target:
    model = sending.model or _first_openai_model(control)
    bare = where.path.partition("?")[0].rstrip("/")
    # OpenAI clients write the base URL with /v1.
    path = where.path if _by_path(bare) == protocol else bare.removesuffix("/v1") + ROUTES[protocol]
    rows: list[Any]
    if sending.inputs is not None:
        rows, source = inputs.values_of(sending.inputs), sending.inputs
    else:
        draw_text = sending.text or Lengths(low=50, high=400)
        rows, source = inputs.prompts(draw_text, seed=sending.seed), "made-up prompts"
    stream = sending.stream and protocol != "embeddings"
    headers = {"Content-Type": "application/json", **sending.all_headers()}

    def requests(size: int) -> list[Encoded]:
        if size > 1 and protocol != "embeddings":
            raise ConfigError(f"{protocol} takes one prompt a request, not {size}")
        made = []
        for batch in inputs.batches(rows, size):
            if protocol == "embeddings":
                body = inputs.embedding(batch, model)
            else:
                body = inputs.generation(
                    protocol, batch[0], model, stream=stream, max_tokens=sending.max_tokens
                )
            made.append(inputs.encoded("POST", path, where.name, headers, body, size))
        return made

    wire = _wire(where, sending, "openai_events" if stream else "openai")
    return Target(protocol, where, wire, requests, model, source)


def _first_openai_model(control: HttpControl) -> str:
    try:
        return str(control.json("/v1/models")["data"][0]["id"])
    except (NotThere, KeyError, IndexError, TypeError):
        raise ConfigError(
            f"{control.address.url}: choose a model with --model; the server lists none"
        ) from None


# A plain URL


def _plain(where: Address, sending: Sending) -> Target:
    bodies, source = _bodies(sending)
    method = sending.method or ("POST" if bodies != [b""] else "GET")
    headers = sending.all_headers()
    if not any(name.lower() == "content-type" for name in headers):
        kind = inputs.media_type(sending.inputs or (sending.body or "").removeprefix("@"))
        if bodies[0][:1] in (b"{", b"["):
            headers["Content-Type"] = "application/json"
        elif kind.startswith(("image/", "audio/", "video/")):
            headers["Content-Type"] = kind

    def requests(size: int) -> list[Encoded]:
        return [inputs.encoded(method, where.path, where.name, headers, b, size) for b in bodies]

    wire = _wire(where, sending, "status")
    return Target("http", where, wire, requests, None, source)


def _bodies(sending: Sending) -> tuple[list[bytes], str]:
    if sending.inputs is not None:
        return [inputs.body_of(value) for value in inputs.values_of(sending.inputs)], sending.inputs
    if sending.body is None:
        return [b""], "no body"
    if not sending.body.startswith("@"):
        return [sending.body.encode()], "the text of --body"
    try:
        return [Path(sending.body[1:]).read_bytes()], sending.body[1:]
    except OSError as error:
        raise ConfigError(f"body {sending.body}: {error}") from None
