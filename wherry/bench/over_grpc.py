"""How is a V2 server queried and loaded over gRPC? (Only this file imports grpcio.)

The messages come from wherry's own description of the protocol. grpcio's asyncio client costs about
half a millisecond of CPU a request: for high rates give the load several processes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wherry.bench.answers import AnswerReader
from wherry.bench.connection import Encoded, LoadConnection, Owner, Wire, tls_context
from wherry.bench.figures import OK
from wherry.bench.inputs import Row, tensors
from wherry.bench.observe import Address, NotThere, Unreachable
from wherry.core.api import ConfigError, ModelDescription
from wherry.server.api import Schema, load

if TYPE_CHECKING:
    import grpc.aio

#: Each caller has its own connection, as if it were its own process.
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
SERVICE = "inference.GRPCInferenceService"
INFER = f"/{SERVICE}/ModelInfer"
STREAM = f"/{SERVICE}/ModelStreamInfer"
#: A stream's response begins with this if it holds an error: field 1, a string.
ERROR_TAG = b"\x0a"


def schema() -> Schema:
    """The protocol's messages and methods; reading the files takes some milliseconds."""
    return load("v2.proto", "model_config.proto")


def check_installed() -> None:
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"gRPC needs grpcio ({error}): pip install 'wherry[grpc]'") from None


def encode(protocol: Schema, model: ModelDescription, version: str, rows: Sequence[Row]) -> Encoded:
    """A ModelInfer request; tensors travel as raw contents."""
    members, contents = [], []
    for member, raw in tensors(model, rows):
        if raw is None:
            texts = [text.encode() for text in member.pop("data")]
            raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        members.append(member)
        contents.append(raw)
    values = {
        "model_name": model.name,
        "model_version": version,
        "inputs": members,
        "raw_input_contents": contents,
    }
    return Encoded(protocol.methods[INFER].request.encode(values), len(rows))


class GrpcControl:
    """Small calls to one server. Blocks; any thread."""

    def __init__(self, address: Address, wire: Wire, timeout: float = 5.0) -> None:
        self.address = address
        self.timeout = timeout
        self._wire = wire
        self.schema = schema()

    def call(self, method: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's fields. Unreachable, or NotThere with the server's message."""
        import grpc

        described = self.schema.methods[f"/{SERVICE}/{method}"]
        with _channel(self._wire, grpc.insecure_channel, grpc.secure_channel) as channel:
            try:
                answer = channel.unary_unary(described.path)(
                    described.request.encode(request),
                    timeout=self.timeout,
                    metadata=self._wire.metadata,
                )
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
                if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise Unreachable(
                        f"{self.address.url}: {details}; is a server running there?"
                    ) from None
                raise NotThere(f"{method}: {code.name}: {details}") from None
        found: dict[str, Any] = described.response.decode(answer)
        return found

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        answer = self.call("ModelMetadata", {"name": name, "version": version})
        for tensor in (*answer.get("inputs", ()), *answer.get("outputs", ())):
            tensor["shape"] = [int(d) for d in tensor.get("shape", ())]
        return {"inputs": [], "outputs": [], **answer}

    def streams(self, name: str, version: str) -> bool:
        try:
            config = self.call("ModelConfig", {"name": name, "version": version})["config"]
        except (NotThere, KeyError):
            return False
        return bool(config.get("model_transaction_policy", {}).get("decoupled"))

    def model_names(self) -> list[str]:
        try:
            index = self.call("RepositoryIndex", {}).get("models", ())
        except NotThere:
            return []
        return sorted({entry["name"] for entry in index})

    def statistics(self, name: str, version: str) -> dict[str, Any] | None:
        """The model's statistics as over HTTP; None if they cannot be read."""
        try:
            answer = self.call("ModelStatistics", {"name": name, "version": version})
            first = answer["model_stats"][0]
        except (Unreachable, NotThere, KeyError, IndexError):
            return None
        kinds = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        stats = first.get("inference_stats", {})
        return {
            "inference_count": first.get("inference_count", 0),
            "execution_count": first.get("execution_count", 0),
            "inference_stats": {kind: _duration(stats.get(kind)) for kind in kinds},
            "batch_stats": [
                {"batch_size": b["batch_size"], "compute_infer": _duration(b.get("compute_infer"))}
                for b in first.get("batch_stats", ())
            ],
        }


def _duration(duration: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"count": 0, "ns": 0, **(duration or {})}  # protobuf leaves zeros out


class GrpcConnection(LoadConnection):
    """A channel, with one call at a time."""

    def __init__(self, owner: Owner, caller: int, channel: grpc.aio.Channel, wire: Wire) -> None:
        super().__init__(owner, caller)
        self._closing = owner.closing
        self._channel: grpc.aio.Channel | None = channel
        self._call = channel.unary_unary(INFER)
        self._metadata = wire.metadata
        self._running: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        return self._channel is not None

    def send(self, request: Encoded, intended: float, sent: float) -> None:
        self.request = request
        self.intended = intended
        self.sent = sent
        self._running = asyncio.get_running_loop().create_task(self._exchange(request))

    def abandon(self) -> None:
        self.owner = None
        if self._running is not None:
            self._running.cancel()
        if self._channel is not None:
            channel, self._channel = self._channel, None
            self._closing(asyncio.ensure_future(channel.close()))

    async def _answer(self, data: bytes) -> str:
        await self._call(data, metadata=self._metadata)
        return OK

    async def _exchange(self, request: Encoded) -> None:
        import grpc

        outcome = OK
        try:
            outcome = await self._answer(request.data)
        except grpc.aio.AioRpcError as error:
            outcome, self.message = f"gRPC {error.code().name}", (error.details() or "")[:300]
        self._running = None
        if self.owner is not None:
            self.owner.answered(self, outcome, perf_counter())


class GrpcStreamConnection(GrpcConnection):
    """A stream for each request: its responses are the pieces of the answer."""

    async def _answer(self, data: bytes) -> str:
        self.reader = AnswerReader()
        call = self._channel.stream_stream(STREAM)(metadata=self._metadata)  # type: ignore[union-attr]
        await call.write(data)
        await call.done_writing()
        async for response in call:
            if response.startswith(ERROR_TAG):
                method = schema().methods[STREAM]
                self.message = str(method.response.decode(response)["error_message"])[:300]
                return "error in the answer"
            self.reader.piece(perf_counter())
        self.message = self.reader.ended()
        return "error in the answer" if self.message else OK


async def connect(wire: Wire, owner: Owner, caller: int) -> GrpcConnection:
    """A channel that is connected. ConnectionError or TimeoutError if it cannot be."""
    import grpc.aio

    channel = _channel(wire, grpc.aio.insecure_channel, grpc.aio.secure_channel)
    try:
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise ConnectionRefusedError(f"{wire.host}:{wire.port} does not speak gRPC")
    except BaseException:
        await channel.close()
        raise
    kind = GrpcStreamConnection if wire.reads == "grpc_stream" else GrpcConnection
    return kind(owner, caller, channel, wire)


def wire_to(where: Address, headers: Mapping[str, str], ssl_ca: str | None, insecure: bool) -> Wire:
    """The address for calls. ConfigError if its certificate cannot be checked, and must be."""
    if where.scheme == "grpcs":
        if insecure:
            raise ConfigError("gRPC checks each certificate: name the server's own as --ssl-ca")
        tls_context(ssl_ca, insecure=False)  # explains what is wrong with ssl_ca; grpcio would not
    metadata = tuple((name.lower(), value) for name, value in headers.items())
    return where.wire(reads="grpc", ssl_ca=ssl_ca, metadata=metadata)


def _channel(wire: Wire, insecure: Any, secure: Any) -> Any:
    import grpc

    host = f"[{wire.host}]" if ":" in wire.host else wire.host
    target = f"{host}:{wire.port}"
    if not wire.tls:
        return insecure(target, options=OPTIONS)
    roots = Path(wire.ssl_ca).read_bytes() if wire.ssl_ca else None
    return secure(target, grpc.ssl_channel_credentials(roots), options=OPTIONS)
