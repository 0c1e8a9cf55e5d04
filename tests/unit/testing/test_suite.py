"""testing/suite.py: examples/plugins pass its checks, and what is wrong does not."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict
from zipfile import ZipFile

import numpy as np
import pytest

import wherry
from tests.plugins import install, install_example
from wherry.core.models.model import Device
from wherry.core.values.errors import ConfigError, InvalidRequest, ModelNotReady
from wherry.llm.engines import language_model
from wherry.server.http.exchange import HttpRequest
from wherry.server.http.route import Route
from wherry.server.protocol import HttpProtocol
from wherry.server.targets import load_target
from wherry.testing import local_server
from wherry.testing.suite import (
    _post,
    check_backend,
    check_cache,
    check_engine,
    check_protocol,
    check_source,
)
from wherry.triton.backends.load import BACKENDS, backend_for, backend_name
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.folders import RepositoryFolders
from wherry.triton.repository.layout import is_name
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonParameter,
)

Bring = Callable[[str, object], None]
ROWS = np.array([[0.1, 0.2], [2.1, 1.9], [0.3, 0.1]])


class Scale(RepositoryModel):
    """y = X times the number in `model.scale`."""

    files = ("model.scale",)

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        number(folder, version)
        given = TritonInput(name="X", data_type="TYPE_FP64", dims=[2])
        found = TritonOutput(name="y", data_type="TYPE_FP64", dims=[2])
        return TritonConfig(name=config.name, max_batch_size=8, input=[given], output=[found])

    def load(self, device: Device) -> None:
        self.factor = number(self.folder, self.version)

    def execute(self, **columns: Any) -> dict[str, Any]:
        return {"y": columns["X"] * self.factor}


def number(folder: str, version: str) -> float:
    try:
        return float(Path(folder, version, "model.scale").read_text())
    except OSError as error:
        raise ConfigError(str(error)) from None


class ChangesItsConfiguration(Scale):
    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        config.parameters["scale"] = TritonParameter(string_value="3")
        return super().completed(folder, version, config)


class LeavesItIncomplete(Scale):
    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        found = super().completed(folder, version, config)
        found.output = []
        return found


class NeedsNoFile(Scale):
    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        return Scale.completed(str(KEPT[0]), version, config)

    def load(self, device: Device) -> None:
        self.factor = 2.0


class RaisesWhatComes(Scale):
    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        Path(folder, version, "model.scale").read_text()
        return super().completed(folder, version, config)


class MixesRows(Scale):
    def execute(self, **columns: Any) -> dict[str, Any]:
        return {"y": columns["X"] - columns["X"].mean(axis=0)}


class KeepsWhatItReadInItsModule(Scale):
    def load(self, device: Device) -> None:
        self.factor = float(len(KEPT))


KEPT: list[Path] = []


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "scale"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.scale").write_text("3")
    KEPT[:] = [folder]
    return folder


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bring:
    """Have a package bring this class of this file, by the name "mine"."""

    def bring(group: str, what: object) -> None:
        monkeypatch.setitem(globals(), "brought", what)
        install(monkeypatch, tmp_path / "installed", group, {"mine": f"{__name__}:brought"})

    return bring


@pytest.mark.slow
def test_a_backend_that_is_right_passes(bring: Bring, scale: Path) -> None:
    bring("wherry.backends", Scale)
    check_backend("mine", scale, X=ROWS)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (ChangesItsConfiguration, "changed the config"),
        (LeavesItIncomplete, "not complete"),
        (NeedsNoFile, "a folder without its file is served"),
        (RaisesWhatComes, "FileNotFoundError.*expected a ConfigError"),
        (MixesRows, "row 0 of 'y' is .* in a batch, and .* alone"),
        (KeepsWhatItReadInItsModule, "is another one in a worker"),
    ],
)
def test_a_backend_that_is_wrong_does_not(wrong: Any, told: str, bring: Bring, scale: Path) -> None:
    bring("wherry.backends", wrong)
    with pytest.raises(AssertionError, match=told):
        check_backend("mine", scale, X=ROWS)


def test_a_package_brings_a_backend_by_its_name_or_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scale: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"scale": f"{__name__}:Scale", "broken": "nothing_of_this_name:Model"}
    install(monkeypatch, tmp_path, BACKENDS.group, entries)
    assert backend_name(TritonConfig(name="m"), str(scale / "1")) == "scale"
    assert "backend is passed over" in caplog.text
    model = backend_for(str(scale), "1", TritonConfig(name="m", backend="scale"))
    with wherry.Runtime(model) as runtime:
        assert runtime.infer("m", X=ROWS[0])["y"].tolist() == pytest.approx([0.3, 0.6])
    with pytest.raises(ConfigError, match="model 'm': the backend 'broken' of a-package 1 cannot"):
        backend_for(str(scale), "1", TritonConfig(name="m", backend="broken"))


MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP64", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP64", "dims": [2]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        doubled = [2 * pb_utils.get_input_tensor_by_name(one, "X").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in doubled]
"""


def test_wherrys_own_backend_of_python(tmp_path: Path) -> None:
    file = tmp_path / "m" / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(MODEL)
    check_backend("python", tmp_path / "m", X=ROWS)


class Shelf:
    """A store that all objects share."""

    kept: ClassVar[dict[bytes, bytes]] = {}

    def __init__(self, settings: Mapping[str, str]) -> None: ...

    def get(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    def set(self, key: bytes, value: bytes) -> None:
        self.kept[key] = value

    def ping(self) -> None: ...
    def close(self) -> None: ...


class KeepsTexts(Shelf):
    def set(self, key: bytes, value: bytes) -> None:
        self.kept[key] = value.decode(errors="replace").encode()


class GivesViews(Shelf):
    def get(self, key: bytes) -> Any:
        found = self.kept.get(key)
        return None if found is None else memoryview(found)


class GivesEmptyBytes(Shelf):
    def get(self, key: bytes) -> bytes | None:
        return self.kept.get(key, b"")


class ShortensKeys(Shelf):
    def get(self, key: bytes) -> bytes | None:
        return self.kept.get(b"")

    def set(self, key: bytes, value: bytes) -> None:
        self.kept[b""] = value


class OfItsOwn(Shelf):
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.__dict__["kept"] = {}


class ClosesForAll(Shelf):
    def close(self) -> None:
        self.kept.clear()


def test_a_cache_that_is_right_passes(bring: Bring) -> None:
    bring("wherry.caches", Shelf)
    check_cache("mine")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (GivesEmptyBytes, "never set gave b''"),
        (KeepsTexts, "after set"),
        (GivesViews, r"get\(\) gave .*memory"),
        (ShortensKeys, "one key gave what was set for another"),
        (OfItsOwn, "another store gave None"),
        (ClosesForAll, r"close\(\) of one store took away"),
    ],
)
def test_a_cache_that_is_wrong_does_not(
    wrong: Any, told: str, bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shelf, "kept", {})
    bring("wherry.caches", wrong)
    with pytest.raises(AssertionError, match=told):
        check_cache("mine")


TEXT = "to be or not to be that is the question whether it is nobler in the mind to be or not to be"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text(TEXT)
    return tmp_path / "text"


def test_the_engine_of_markov_chains(
    text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_example(monkeypatch, tmp_path, "wherry_markov")
    check_engine("markov", text, "be or")
    model = language_model("markov", f"{text}?name=bard")
    assert model.config().name == "bard"
    with pytest.raises(ConfigError, match="unexpected keyword argument 'size'"):
        load_target(f"markov:{text}?size=3")


class Parrot(wherry.Model):
    """Says the prompt again, word by word."""

    max_batch_size = 1

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint

    def load(self, device: Device) -> None:
        Path(self.checkpoint).read_text()

    def execute(self, prompt: str, parameters: Mapping[str, Any]) -> Iterator[Delta]:
        words = prompt.split()[: parameters["max_tokens"]]
        for word in words:
            yield {"text": f" {word}", "finish_reason": "", "usage": {}}
        yield {"text": "", "finish_reason": "stop", "usage": {"completion_tokens": len(words)}}


class Delta(TypedDict):
    text: str
    finish_reason: str
    usage: dict[str, int]


class NeedsNoCheckpoint(Parrot):
    def load(self, device: Device) -> None: ...


class SaysNothing(Parrot):
    def execute(self, prompt: str, parameters: Mapping[str, Any]) -> Iterator[Delta]:
        yield {"text": "", "finish_reason": "stop", "usage": {"completion_tokens": 1}}


class NeverStops(Parrot):
    def execute(self, prompt: str, parameters: Mapping[str, Any]) -> Iterator[Delta]:
        return super().execute(f"{prompt} " * 9, {"max_tokens": 17})


class TakesNoParameters(Parrot):
    def execute(self, prompt: str) -> Iterator[Delta]:  # type: ignore[override]
        return super().execute(prompt, {"max_tokens": 3})


class TakesNoPrompt(Parrot):
    def execute(self, text: str) -> Iterator[Delta]:  # type: ignore[override]
        return super().execute(text, {"max_tokens": 3})


class SaysAnotherThingEachTime(Parrot):
    def execute(self, prompt: str, parameters: Mapping[str, Any]) -> Iterator[Delta]:
        self.times = getattr(self, "times", 0) + 1
        return super().execute(f"{self.times} {prompt}", parameters)


def test_an_engine_that_is_right_passes(bring: Bring, text: Path) -> None:
    bring("wherry.engines", Parrot)
    check_engine("mine", text, "one two three four")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (NeedsNoCheckpoint, "a checkpoint that is not there is served"),
        (SaysNothing, "no answer"),
        (NeverStops, "max_tokens is 16, and usage has 17"),
        (TakesNoParameters, "answers 400: .*does not support it"),
        (TakesNoPrompt, "no answer: it needs an input"),
        (SaysAnotherThingEachTime, "four streams at once gave"),
    ],
)
def test_an_engine_that_is_wrong_does_not(wrong: Any, told: str, bring: Bring, text: Path) -> None:
    bring("wherry.engines", wrong)
    with pytest.raises(AssertionError, match=told):
        check_engine("mine", text, "one two three four")


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    return [one.upper() for one in text]


@wherry.model(max_batch_size=8)
def parrot(prompt: list[str]) -> list[str]:
    return prompt


def test_the_protocol_of_torchserve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_example(monkeypatch, tmp_path, "wherry_torchserve")
    for path, body in (
        ("/predictions/shout", '"a day"'),
        ("/predictions/shout/1", '{"text": "a day"}'),
    ):
        check_protocol("torchserve", shout, path=path, body=body, says='"A DAY"')
    with local_server(shout) as server:
        told = _post(f"{server.url}/predictions/nothing", b"a day", {"Content-Type": "text/plain"})
        assert told[0] == 404
        assert json.loads(told[1])["type"] == "NotFoundException"
        head = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
        told = _post(f"{server.url}/predictions/shout", gzip.compress(b"a day " * 20_000), head)
        assert told == (200, json.dumps("A DAY " * 20_000).encode())


@pytest.mark.parametrize(
    ("protocol", "path", "body", "model"),
    [
        ("openai", "/v1/completions", '{"model": "parrot", "prompt": "hello you"}', parrot),
    ],
)
def test_wherrys_own_protocols(protocol: str, path: str, body: str, model: Any) -> None:
    check_protocol(protocol, model, path=path, body=body, says="hello you")


class Echo(HttpProtocol):
    def routes(self) -> Mapping[str, Route]:
        return {"/echo/{model}": self.route(POST=self.echo)}

    async def echo(self, model: str, request: HttpRequest) -> bytes:
        try:
            row = json.loads(bytes(request.body))
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        return json.dumps(await self.runtime.ainfer(model, row)).encode()


class RaisesWhatComesOfABody(Echo):
    async def echo(self, model: str, request: HttpRequest) -> bytes:
        return json.dumps(
            await self.runtime.ainfer(model, json.loads(bytes(request.body)))
        ).encode()


class IsOpen(Echo):
    def routes(self) -> Mapping[str, Route]:
        (route,) = super().routes().values()
        return {"/echo/{model}": replace(route, open=True)}


class SaysNothingElse(Echo):
    async def echo(self, model: str, request: HttpRequest) -> bytes:
        await super().echo(model, request)
        return b"{}"


class TakesAnothersPath(Echo):
    def routes(self) -> Mapping[str, Route]:
        return {**super().routes(), "/v1/completions": self.route(POST=self.echo)}


class TakesAllPaths(Echo):
    def routes(self) -> Mapping[str, Route]:
        return {**super().routes(), "/{path*}": self.route(POST=self.echo)}


class TakesTheModels(Echo):
    def routes(self) -> Mapping[str, Route]:
        return {**super().routes(), "/v2/models/{model}": self.route(GET=self.echo)}


class Raises(Echo):
    def routes(self) -> Mapping[str, Route]:
        raise RuntimeError("no routes today")


def test_a_protocol_that_is_right_passes(bring: Bring) -> None:
    bring("wherry.protocols", Echo)
    check_protocol("mine", shout, path="/echo/shout", body='"a day"', says='"A DAY"')


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (RaisesWhatComesOfABody, "answers 500 to a body that makes no sense"),
        (IsOpen, "answers 200 to a client without the server's key"),
        (SaysNothingElse, "does not answer with"),
        (TakesAnothersPath, "answers 404"),
        (TakesAllPaths, "answers 404"),
        (TakesTheModels, "answers 404"),
        (Raises, "answers 404"),
    ],
)
def test_a_protocol_that_is_wrong_does_not(wrong: Any, told: str, bring: Bring) -> None:
    bring("wherry.protocols", wrong)
    with pytest.raises(AssertionError, match=f"/echo/shout {told}"):
        check_protocol("mine", shout, path="/echo/shout", body='"a day"', says='"A DAY"')


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (TakesAnothersPath, "its path /v1/completions is another's"),
        (TakesAllPaths, r"its path /\{path\*\} would be before those of others"),
        (TakesTheModels, r"its path /v2/models/\{model\} would be before"),
        (Raises, "no routes today"),
        (Shelf, "the protocol 'mine' of a-package 1 makes a Shelf without routes"),
    ],
)
def test_a_protocol_that_is_passed_over_is_told_of(
    wrong: Any, why: str, bring: Bring, caplog: pytest.LogCaptureFixture
) -> None:
    bring("wherry.protocols", (lambda entry: Shelf({})) if wrong is Shelf else wrong)
    with local_server(shout) as server, wherry.Client(server.url) as client:
        assert client.infer("shout", text="a day") == "A DAY"
    (record,) = (one for one in caplog.records if one.message == "protocol is passed over")
    assert re.search(why, record.__dict__["why"])


def pack(file: Path, members: Mapping[str, str]) -> None:
    with ZipFile(file, "w") as packed:
        for name, text in members.items():
            packed.writestr(name, text)


def test_the_source_of_zip_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_example(monkeypatch, tmp_path / "installed", "wherry_zip")
    file = tmp_path / "models.zip"
    members = {"a/1/model.py": "1", "a/config.pbtxt": "", "b/1/model.py": "2", "README": "3"}
    pack(file, members)
    check_source(f"zip://{file}", "a", "b")

    folders = RepositoryFolders([f"zip://{file}"])
    assert folders.names() == {"a", "b"}
    before = folders.files_of("a")
    pack(file, {"a/1/model.py": "changed"})
    assert folders.names() == {"a"}
    changed = folders.files_of("a")
    assert "config.pbtxt" in {Path(path).name for path, *_ in before}
    assert {Path(path).name for path, *_ in changed} == {"1", "model.py"}
    pack(file, {"a/../../beside": "out"})
    with pytest.raises(ModelNotReady, match="cannot be read"):
        folders.files_of("a")
    file.write_text("no zip")
    with pytest.raises(ConfigError, match="not a zip file"):
        folders.check()
    folders.close()


class Folder:
    """Copies a folder of this machine."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.there = Path(url.partition("://")[2])
        self.folder = tempfile.mkdtemp()

    def list(self) -> None:
        for one in self.there.iterdir():
            Path(self.folder, one.name).mkdir(exist_ok=True)

    def copy(self, name: str) -> None:
        if is_name(name) and (self.there / name).is_dir() and not self.has(name):
            shutil.copytree(self.there / name, Path(self.folder, name), dirs_exist_ok=True)

    def has(self, name: str) -> bool:
        return any(Path(self.folder, name).iterdir())

    def close(self) -> None:
        shutil.rmtree(self.folder)


class CopiesAgain(Folder):
    def has(self, name: str) -> bool:
        shutil.rmtree(Path(self.folder, name))
        return False


class CopiesNothing(Folder):
    def has(self, name: str) -> bool:
        return True


class ListsNothing(Folder):
    def list(self) -> None:
        next(self.there.iterdir())


class IsAlwaysThere(Folder):
    def list(self) -> None:
        if self.there.is_dir():
            super().list()


class LeavesItsFolder(Folder):
    def close(self) -> None:
        LEFT.append(self.folder)


class FollowsPaths(Folder):
    def copy(self, name: str) -> None:
        super().copy(name)
        if name.startswith("../"):
            Path(self.folder, name).touch()
            LEFT.append(os.path.join(self.folder, name))


LEFT: list[str] = []


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "there" / "m" / "1").mkdir(parents=True)
    (tmp_path / "there" / "m" / "1" / "model.py").touch()
    yield tmp_path / "there"
    for path in LEFT:
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    LEFT.clear()


def test_a_source_that_is_right_passes(bring: Bring, repository: Path) -> None:
    bring("wherry.sources", Folder)
    check_source(f"mine://{repository}", "m")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (CopiesAgain, "a second copy.* wrote model.py"),
        (CopiesNothing, "brings no file"),
        (ListsNothing, r"list\(\) has folders for \[\]"),
        (IsAlwaysThere, "is-not-there is served"),
        (LeavesItsFolder, "leaves the folder"),
        (FollowsPaths, "a name that is a path left the folder"),
    ],
)
def test_a_source_that_is_wrong_does_not(
    wrong: Any, told: str, bring: Bring, repository: Path
) -> None:
    bring("wherry.sources", wrong)
    with pytest.raises(AssertionError, match=told):
        check_source(f"mine://{repository}", "m")


@pytest.mark.slow  # scipy takes a torch that --without hides for one that is imported
@pytest.mark.parametrize("estimator", ["classifier", "words", "regressor", "scaler"])
def test_the_backend_of_scikit_learn(
    estimator: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    scaling = importlib.import_module("sklearn.preprocessing")
    skops = pytest.importorskip("skops.io")
    install_example(monkeypatch, tmp_path, "wherry_sklearn")
    makers: dict[str, Callable[[], Any]] = {
        "classifier": lambda: linear.LogisticRegression().fit(ROWS, [0, 1, 0]),
        "words": lambda: linear.RidgeClassifier().fit(ROWS, ["low", "high", "low"]),
        "regressor": lambda: linear.LinearRegression().fit(ROWS, [1.0, 2.0, 3.0]),
        "scaler": lambda: scaling.StandardScaler().fit(ROWS),
    }
    fitted = makers[estimator]()
    file = tmp_path / "models" / "iris" / "1" / "model.skops"
    file.parent.mkdir(parents=True)
    skops.dump(fitted, file)

    check_backend("sklearn", tmp_path / "models" / "iris", X=ROWS)

    model = backend_for(str(tmp_path / "models" / "iris"), "1", TritonConfig(name="iris"))
    with wherry.Runtime(model) as runtime:
        answers = runtime.infer_batch("iris", X=ROWS)
    if estimator == "classifier":
        assert np.allclose(answers.pop("probabilities"), fitted.predict_proba(ROWS))
        assert np.ravel(answers.pop("label")).tolist() == [0, 1, 0]
    elif estimator == "words":
        assert np.ravel(answers.pop("label")).tolist() == [b"low", b"high", b"low"]
    else:
        expected = fitted.predict(ROWS) if estimator == "regressor" else fitted.transform(ROWS)
        assert np.allclose(answers.pop("y"), np.reshape(expected, (3, -1)))
    assert not answers
