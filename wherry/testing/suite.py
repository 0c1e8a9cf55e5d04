"""Does a package's plugin keep what wherry relies on? Checks for the package's own tests.

    def test_the_backend(tmp_path):
        save_a_model(tmp_path / "iris" / "1" / "model.skops")
        check_backend("sklearn", tmp_path / "iris", X=np.zeros((3, 4)))

The package is installed: what it brings is found by its name. A check raises AssertionError with
what was expected and what came, or the ConfigError of an entry point that is wrong.
"""

from __future__ import annotations

import secrets
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from wherry.core.api import CACHES, Isolation, Model, Runtime, WherryError
from wherry.llm.api import language_model
from wherry.server.api import PROTOCOLS
from wherry.testing.servers import local_server
from wherry.triton.api import RepositoryModel, backend_for, look, source_of


def check_backend(backend: str, folder: Path | str, **inputs: Any) -> None:
    """A backend by its name, with the folder of a model and a batch of two rows or more."""

    def made(folder: str) -> RepositoryModel:
        return backend_for(folder, "1", msgspec.structs.replace(config, backend=backend))

    folder = Path(folder)
    config = look(folder.name, [str(folder.parent)]).config
    before = msgspec.json.encode(config)
    model = made(str(folder))
    _expect(
        msgspec.json.encode(config) == before,
        "completed() changed the config that was passed to it",
    )
    _expect(model.triton.output, "the configuration is not complete: it has no output")
    with tempfile.TemporaryDirectory() as nothing, _refused("a folder without its file"):
        (Path(nothing) / "1").mkdir()
        Runtime(made(nothing)).start().close()
    answers = []
    isolations: tuple[Isolation, Isolation] = "thread", "process"
    for one, isolation in zip((model, made(str(folder))), isolations, strict=True):
        with Runtime(one, isolation=isolation) as runtime:
            name = runtime.models()[0].name
            together = runtime.infer_batch(name, **inputs)
            rows = {key: len(column) for key, column in inputs.items()}
            for output in one.triton.output:
                _expect(output.name in together, f"there is no output {output.name!r}")
            for i in range(next(iter(rows.values())) if one.triton.max_batch_size else 0):
                row = {key: column[i : i + 1] for key, column in inputs.items()}
                alone = runtime.infer_batch(name, **row)
                for key, column in together.items():
                    _expect(
                        _same(column[i : i + 1], alone[key]),
                        f"row {i} of {key!r} is {column[i]!r} in a batch, and {alone[key][0]!r}"
                        " alone: a row's answer must not depend on its neighbours",
                    )
            answers.append(together)
    for key, column in answers[0].items():
        _expect(
            _same(column, answers[1][key]),
            f"{key!r} is another one in a worker: a model may depend on its arguments only",
        )


def check_engine(engine: str, checkpoint: Path | str, prompt: str = "Hello") -> None:
    """An engine by its name, with a checkpoint that it loads and a prompt that it continues."""
    with _refused("a checkpoint that is not there"):
        Runtime(language_model(engine, f"{checkpoint}-is-not-there")).start().close()
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": prompt},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": prompt}]},
    }
    with local_server(language_model(engine, str(checkpoint))) as server:
        served = [
            _check_answers(server.url + path, {**body, "max_tokens": 16, "temperature": 0})
            for path, body in bodies.items()
        ]
    _expect(any(served), "no answer: it needs an input 'prompt' or 'messages', and text to give")


def _check_answers(url: str, body: Mapping[str, Any]) -> str:
    """The answer of a route, checked whole and in pieces; "" if the server does not have it."""

    def post(body: Mapping[str, Any]) -> tuple[int, bytes]:
        return _post(url, msgspec.json.encode(body), {})

    status, body_answer = post(body)
    if status == 404:
        return ""
    _expect(status == 200, f"{url} answers {status}: {body_answer[:500].decode()}")
    whole = msgspec.json.decode(body_answer)
    choice, tokens = whole["choices"][0], whole["usage"]["completion_tokens"]
    text, reason = _text_of(choice, "message"), choice["finish_reason"]
    _expect(reason in ("stop", "length"), f"{url}: the last finish_reason is {reason!r}")
    _expect(0 < tokens <= 16, f"{url}: max_tokens is 16, and usage has {tokens} tokens")
    with ThreadPoolExecutor(4) as threads:
        streams = list(threads.map(post, [{**body, "stream": True}] * 4))
    for _, stream in streams:
        lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
        pieces = [msgspec.json.decode(line)["choices"][0] for line in lines]
        streamed = "".join(_text_of(piece, "delta") for piece in pieces)
        difference = f"four streams at once gave {streamed!r}, and {text!r} came alone and whole"
        _expect(streamed == text, f"{url}: with temperature 0 {difference}")
    return text


def check_protocol(
    protocol: str,
    *models: Model,
    path: str,
    body: bytes | str,
    says: str,
    content_type: str = "application/json",
) -> None:
    """A protocol by its name: with these models the answer to a body sent to a path contains
    `says`."""
    sent = body.encode() if isinstance(body, str) else body

    def post(url: str, data: bytes = sent, key: str = "right") -> tuple[int, bytes]:
        return _post(url, data, {"Content-Type": content_type, "X-API-Key": key})

    PROTOCOLS.load(protocol)
    with local_server(*models, api_keys=["right"]) as server:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(post, [server.url + path] * 8))
        for status, body_answer in answers:
            _expect(status == 200, f"{path} answers {status}: {body_answer[:500].decode()}")
            _expect(
                says.encode() in body_answer,
                f"{path} does not answer with {says!r}: {body_answer[:500].decode()}",
            )
        status, body_answer = post(server.url + path, b'\xff{"')
        _expect(
            400 <= status < 500, f"{path} answers {status} to a body that makes no sense, not 4xx"
        )
        status, _ = post(server.url + path, key="wrong")
        _expect(status == 401, f"{path} answers {status} to a client without the server's key")
        for own in ("/v2/health/ready", "/v2", "/v1/models"):
            status, _ = _post(server.url + own, None, {"X-API-Key": "right"})
            _expect(status == 200, f"beside it the server's own {own} answers {status}")


def check_source(url: str, *names: str) -> None:
    """A source by a URL that it reads, and the names of all models that are there."""
    missing = f"{url}-is-not-there"
    with _refused(missing, OSError):
        source_of(missing).list()
    source = source_of(url)
    folder = Path(source.folder)
    source.list()
    found = sorted(one.name for one in folder.iterdir())
    _expect(found == sorted(names), f"list() has folders for {found}, not for {sorted(names)}")
    for name in names:
        source.copy(name)
        files = {one: one.stat() for one in (folder / name).rglob("*") if one.is_file()}
        _expect(files, f"copy({name!r}) brings no file")
        with ExitStack() as stack:
            for one in files:  # held open: the inode number of a deleted file is not reused
                stack.enter_context(one.open("rb"))
            source.copy(name)
            for one, before in files.items():
                now = one.stat()
                same = (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
                _expect(same, f"a second copy({name!r}) wrote {one.name}, which has not changed")
    beside = secrets.token_hex()
    for name in ("", "..", f"../{beside}", beside):
        source.copy(name)
    _expect(
        not (folder.parent / beside).exists(), "copy() of a name that is a path left the folder"
    )
    source.close()
    _expect(not folder.exists(), "close() leaves the folder")


def check_cache(cache: str, **settings: str) -> None:
    """A cache by its name, with the settings of a store that is there."""
    store, other = (CACHES.make(cache, settings) for _ in range(2))
    store.ping()
    key, second = secrets.token_bytes(24), secrets.token_bytes(24)
    found = store.get(key)
    _expect(found is None, f"get() of a key that was never set gave {found!r}, not None")
    for value in (b"\0\xff answer", b"", b"another", secrets.token_bytes(2**20)):
        store.set(key, value)
        for which, found in (("get()", store.get(key)), ("another store", other.get(key))):
            _expect(
                found == value and type(found) is bytes,
                f"{which} gave {str(found)[:40]} after set() of {value[:20]!r}",
            )
    _expect(store.get(second) is None, "get() of one key gave what was set for another")

    def use(number: int) -> bool:
        mine = second + bytes([number])
        store.set(mine, mine)
        return bool(store.get(mine) == mine)

    with ThreadPoolExecutor(8) as threads:
        _expect(all(threads.map(use, range(64))), "eight threads at once read another's value")
    store.close()
    _expect(other.get(key) is not None, "close() of one store took away what another one has")
    other.close()


@contextmanager
def _refused(what: str, kind: type[Exception] = WherryError) -> Iterator[None]:
    """Expect an error of wherry's own, or one of these."""
    try:
        yield
    except (WherryError, kind):
        return
    except Exception as error:  # the package's code: anything may come
        raise AssertionError(f"{what}: {error!r}, expected a ConfigError") from error
    raise AssertionError(f"{what} is served, expected a ConfigError")


def _post(url: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
    """The status and the body of an answer; without a body it is a GET."""
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def _text_of(choice: Mapping[str, Any], chat: str) -> str:
    return str((choice[chat].get("content") if chat in choice else choice["text"]) or "")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and one.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
    return list(map(str, one)) == list(map(str, other))


def _expect(holds: object, message: str) -> None:
    if not holds:
        raise AssertionError(message)
