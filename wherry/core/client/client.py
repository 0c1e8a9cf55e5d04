"""How does a call become an HTTP exchange? Uses the standard library's http.client."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from wherry.core.client.connections import KeptConnections, check_status, events, no_answer
from wherry.core.client.wire import (
    ModelDescription,
    describe,
    error_of,
    in_json,
    infer_body,
    outputs_of,
    row_of,
)
from wherry.core.observability.otel.context import current_headers
from wherry.core.values.errors import DeadlineExceeded, InvalidRequest, WherryError
from wherry.core.values.request import Columns, check_timeout

#: Seconds beyond a request's timeout for the server to report that it has passed.
GRACE = 5.0


class Client:
    """Call a server with the methods of a Runtime. Safe from any thread and after a fork; can be
    pickled unless it has an `ssl_context`.

        with wherry.Client("http://127.0.0.1:8000") as client:
            client.infer("sentiment", text="good")

    `url` may be http, https, or http+unix:///path/of/the.sock. `timeout`: seconds of silence after
    which a call fails. Raises the server's error as a WherryError, also if the answer is not V2's;
    OSError if the server cannot be reached or the answer is cut off.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._credentials = api_key, ssl_context
        self._connections = KeptConnections(self.url, ssl_context)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._described: dict[str, ModelDescription] = {}

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # For other processes: the same server, with their own connections.
        api_key, ssl_context = self._credentials
        settings: dict[str, Any] = {
            "api_key": api_key,
            "timeout": self.timeout,
            "ssl_context": ssl_context,
        }
        return partial(type(self), **settings), (self.url,)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    # Calls. `model` is "name" or "name:version"; `version` is an alternative.

    def infer(
        self,
        model: str,
        /,
        *args: Any,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        **inputs: Any,
    ) -> Any:
        """Run one row. Returns the value, or a dict of several outputs. `timeout` in seconds.
        Blocks.

        A file may be bytes, a pathlib.Path, or a file opened with "rb". Pass inputs named like one
        of these arguments by position.
        """
        model = _versioned(model, version)
        described = self.describe(model, timeout)
        columns = {name: [value] for name, value in _by_name(described, args, inputs).items()}
        return row_of(described, self._infer(model, described, columns, timeout, priority))

    def infer_batch(
        self,
        model: str,
        /,
        *,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        **columns: Any,
    ) -> Columns:
        """Run many rows: columns in, columns out by output name. Blocks."""
        model = _versioned(model, version)
        return self._infer(model, self.describe(model, timeout), columns, timeout, priority)

    def stream(
        self,
        model: str,
        /,
        *args: Any,
        version: str | int | None = None,
        timeout: float | None = None,
        **inputs: Any,
    ) -> Iterator[Any]:
        """Yield the responses of a generator model; closing the iterator cancels the request."""
        model = _versioned(model, version)
        described = self.describe(model, timeout)
        body: dict[str, Any] = {
            name: in_json(value) for name, value in _by_name(described, args, inputs).items()
        }
        if timeout is not None:
            body["timeout"] = _microseconds(timeout)
        encoded = msgspec.json.encode(body)
        with self._exchange(
            "POST", f"{_path(model)}/generate_stream", encoded, timeout=timeout
        ) as response:
            answers = events(response)
            while True:
                with no_answer(self.url):
                    event = next(answers, None)
                    if event is None:
                        return
                    row = _streamed(described, event)
                yield row

    def models(self) -> list[dict[str, Any]]:
        """Return name, version, state, inputs and outputs of each model on the server."""
        found: list[dict[str, Any]] = self._json("GET", "/v2/models")["models"]
        return found

    def metadata(self, model: str) -> dict[str, Any]:
        """Return a model's inputs and outputs, as in the V2 protocol."""
        found: dict[str, Any] = self._json("GET", _path(model))
        return found

    def batching(self, model: str) -> dict[str, Any]:
        """Return what the model's batcher has learnt and done."""
        found: dict[str, Any] = self._json("GET", f"{_path(model)}/batching")
        return found

    def numbers(self) -> dict[str, Any]:
        """Return current rates, latencies, queues and instances."""
        found: dict[str, Any] = self._json("GET", "/dashboard/numbers")
        return found

    def describe(self, model: str, timeout: float | None = None) -> ModelDescription:
        """Return what is needed to call the model; requested once, then cached."""
        described = self._described.get(model)
        if described is None:
            config = self._json("GET", f"{_path(model)}/config", timeout=timeout)
            with no_answer(self.url):
                described = describe(config)
            self._described[model] = described
        return described

    def ready(self, model: str | None = None) -> bool:
        """Return whether the server (or this model) is ready; False if it cannot be reached."""
        path = "/v2/health/ready" if model is None else f"{_path(model)}/ready"
        try:
            with self._exchange("GET", path) as response:
                response.read()
        except (OSError, WherryError):
            return False
        return True

    # One exchange

    def _infer(
        self,
        model: str,
        described: ModelDescription,
        columns: Mapping[str, Any],
        timeout: float | None,
        priority: int,
    ) -> Columns:
        parameters: dict[str, Any] = {}
        if timeout is not None:
            parameters["timeout"] = _microseconds(timeout)
        if priority:
            parameters["priority"] = priority
        try:
            body, json_bytes = infer_body(described, columns, parameters)
            headers = {"Inference-Header-Content-Length": str(json_bytes)}
            with self._exchange(
                "POST", f"{_path(model)}/infer", body, headers, timeout=timeout
            ) as response:
                answer = memoryview(response.read())
                length = response.headers.get("Inference-Header-Content-Length")
            with no_answer(self.url):
                end = len(answer) if length is None else int(length)
                head = msgspec.json.decode(answer[:end])
                return outputs_of(described, head, answer[end:])[0]
        except InvalidRequest:
            # The model may have been replaced: request its description again next time.
            self._described.pop(model, None)
            raise

    def _json(self, method: str, path: str, *, timeout: float | None = None) -> Any:
        with self._exchange(method, path, timeout=timeout) as response, no_answer(self.url):
            return msgspec.json.decode(response.read())

    @contextlib.contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield a successful response; WherryError for any other."""
        send = {**self._headers, **(headers or {}), **current_headers()}
        if body is not None:
            send.setdefault(
                "Content-Type", "application/octet-stream" if headers else "application/json"
            )
        connection, response = self._send(
            method, self._connections.base + path, body, send, timeout
        )
        whole = True
        try:
            if response.status >= 400:
                raise error_of(
                    response.status, response.read(), response.headers.get("Retry-After")
                )
            check_status(response, self.url)
            yield response
        except WherryError:
            raise
        except TimeoutError:
            whole = False
            raise DeadlineExceeded(f"{self.url}: no answer in time") from None
        except http.client.IncompleteRead as error:
            whole = False
            raise ConnectionError(f"{self.url}: the answer was cut off: {error}") from None
        finally:
            # A connection with an unread rest cannot be reused; closing it also cancels a stream.
            if whole and response.isclosed() and not response.will_close:
                self._connections.give_back(connection)
            else:
                connection.close()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float | None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connections.take()
        wait = self.timeout if timeout is None else _microseconds(timeout) * 1e-6 + GRACE
        if connection is not None:
            try:
                return connection, self._sent(connection, method, path, body, headers, wait)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # The server has just closed it. If it had begun to execute, the model runs twice,
                # as when a worker dies.
                pass
        connection = self._connections.new(self.timeout)
        return connection, self._sent(connection, method, path, body, headers, wait)

    def _sent(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> http.client.HTTPResponse:
        """Send the request; return the response's head. Closes the connection if none arrives."""
        try:
            connection.timeout = timeout
            if not connection.sock:
                connection.connect()  # http.client sets TCP_NODELAY: head and body are two writes
            connection.sock.settimeout(timeout)
            connection.request(method, path, body, dict(headers))
            return connection.getresponse()
        except TimeoutError:
            connection.close()
            raise DeadlineExceeded(f"{self.url}: no answer within {timeout:g} s") from None
        except http.client.HTTPException as error:
            connection.close()
            if isinstance(error, OSError):  # RemoteDisconnected
                raise
            reason = str(error).strip()[:80] or type(error).__name__
            raise ConnectionError(f"{self.url}: {reason!r} is not HTTP") from None
        except BaseException:
            connection.close()
            raise


def _path(model: str) -> str:
    name, _, version = model.partition(":")
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _versioned(model: str, version: str | int | None) -> str:
    if version is None:
        return model
    if type(version) not in (str, int) or ":" in model:
        raise InvalidRequest(
            f"model {model!r}: version must be a str or an int, passed once, not"
            f" {type(version).__name__}; pass an input of that name by position"
        )
    return f"{model}:{version}"


def _by_name(
    model: ModelDescription, args: tuple[Any, ...], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    if len(args) > len(model.inputs):
        raise InvalidRequest(
            f"model {model.name!r} has {len(model.inputs)} inputs, not {len(args)}"
        )
    by_place = {tensor.name: arg for tensor, arg in zip(model.inputs, args, strict=False)}
    return {name: value for name, value in {**by_place, **inputs}.items() if value is not None}


def _streamed(model: ModelDescription, event: Mapping[str, Any]) -> Any:
    if "error" in event:
        raise WherryError(str(event["error"]))
    outputs = {tensor.name for tensor in model.outputs}
    row = {name: value for name, value in event.items() if name in outputs}
    return row["output"] if model.returns_one_value and "output" in row else row


def _microseconds(seconds: float) -> int:
    check_timeout(seconds)
    return max(1, round(min(seconds, 1e9) * 1e6))
