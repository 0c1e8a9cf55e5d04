"""Which models a target means, and what is said of one that means none."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from wherry import Model, Runtime
from wherry.core.instances.source import import_file
from wherry.core.values.errors import ConfigError
from wherry.llm import LLM
from wherry.llm.engine import choice
from wherry.llm.engines import TargetError, with_engine
from wherry.server.targets import (
    TargetRaised,
    load_failure,
    load_target,
    load_targets,
    module_name,
    user_traceback,
)


@pytest.fixture(autouse=True)
def _own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules and paths of one test are not those of the next."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


NET = """
import wherry

class Net(wherry.Model):
    def {}: ...
"""

APP = """
import wherry
from wherry import Model

@wherry.model
def first(text: list[str]) -> list[str]:
    return text

class Second(Model):
    def execute(self, text: list[str]) -> list[str]:
        return text

class Third(Second):
    pass

third = Third()
again = third
_hidden = Second()

class Base(Model):
    pass

@wherry.pipeline
async def fourth(text: str) -> str:
    return await first.ainfer(text)

several = [first, Second]
runtime = wherry.Runtime(first)
number = 3
"""


def write(path: Path, text: str = APP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(found: list[Model] | Runtime) -> list[str]:
    assert isinstance(found, list)
    return [model.name for model in found]


def test_a_file_means_every_model_at_its_top_level_once(tmp_path: Path) -> None:
    app = write(tmp_path / "some_app.py")
    assert names(load_target(str(app))) == ["first", "second", "third", "fourth"]
    assert sys.modules["some_app"].__file__ == str(app)
    assert str(tmp_path) in sys.path


def test_a_file_is_found_although_the_current_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = write(tmp_path / "somewhere.py")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "first" in names(load_targets([str(app)]))


def test_a_module_an_object_a_list_and_a_runtime(tmp_path: Path) -> None:
    write(tmp_path / "package_a" / "app_b.py")
    write(tmp_path / "package_a" / "__init__.py", "")
    assert len(names(load_targets(["package_a.app_b"]))) == 4
    assert names(load_targets(["package_a.app_b:third"])) == ["third"]
    assert names(load_targets(["package_a.app_b:Second"])) == ["second"]
    assert names(load_targets(["package_a.app_b:several"])) == ["first", "second"]
    assert isinstance(load_targets(["package_a.app_b:runtime"]), Runtime)
    assert names(load_targets(["package_a.app_b:first", "package_a.app_b:several"])) == [
        "first",
        "second",
    ]


def test_a_file_in_a_package_has_the_name_that_its_imports_need(tmp_path: Path) -> None:
    write(tmp_path / "pack" / "__init__.py", "")
    write(tmp_path / "pack" / "inner" / "__init__.py", "")
    app = write(tmp_path / "pack" / "inner" / "app_c.py", APP + "\nfrom ..words import WORD\n")
    write(tmp_path / "pack" / "words.py", "WORD = 1")
    assert module_name(app) == ("pack.inner.app_c", tmp_path)
    assert len(names(load_target(str(app)))) == 4


def test_a_file_whose_name_is_no_identifier_is_served_too(tmp_path: Path) -> None:
    assert len(names(load_target(str(write(tmp_path / "my-app.py"))))) == 4


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing.py", "no such file"),
        ("folder/missing.py", "no such file"),
        ("nomodule", "no module 'nomodule'"),
        ("some_app:thrid", r"no 'thrid'; did you mean 'third'\?"),
        ("some_ap.py", r"no such file; did you mean 'some_app.py'\?"),
        ("sub/needs_argument.py", "no such file$"),
        ("some_app:number", "is not a model, list of models, or Runtime; it is 3"),
        ("some_app:plain", "decorate it with @wherry.model"),
        ("predicts.py", r"predicts: Net has no execute\(\); rename its predict\(\)"),
        ("loads.py", r"loads: Net has no execute\(\); write it"),
        ("net.onnx", "serve a folder with it as NAME/1/model.onnx, or read it in load"),
        ("./net.safetensors", r"not a Python file; read it in load\(\) of a model"),
        ("net.gguf", "write llm:net.gguf"),
        ("empty_app", "has no models"),
        ("a b", "neither a file"),
        (":x", "neither a file"),
        ("json.py", "another module called 'json'"),
        ("needs_arguments.py", "cannot be made without arguments"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, target: str, message: str) -> None:
    write(tmp_path / "some_app.py", APP + "\ndef plain(x: str) -> str:\n    return x\n")
    write(tmp_path / "empty_app.py", "x = 1")
    write(tmp_path / "predicts.py", NET.format("predict(self, x: str) -> str"))
    write(tmp_path / "loads.py", NET.format("load(self) -> None"))
    for name in ("net.onnx", "net.safetensors", "net.gguf"):
        write(tmp_path / name, "")
    write(tmp_path / "json.py")
    write(
        tmp_path / "needs_arguments.py",
        "import wherry\nclass A(wherry.Model):\n    def __init__(self, path): ...\n"
        "    def execute(self, text: list[str]) -> list[str]: return text\n",
    )
    with pytest.raises(TargetError, match=message):
        load_targets([target])


def test_a_runtime_is_served_alone(tmp_path: Path) -> None:
    write(tmp_path / "some_app.py")
    with pytest.raises(TargetError, match="alone"):
        load_targets(["some_app:runtime", "some_app:first"])


def test_what_the_file_raises_is_kept_and_shown_from_its_first_line_on(tmp_path: Path) -> None:
    app = write(tmp_path / "raises.py", "def f():\n    1 / 0\nf()\n")
    with pytest.raises(TargetRaised) as raised:
        load_target(str(app))
    cause = raised.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    lines = user_traceback(cause).splitlines()
    assert lines[:2] == [
        "Traceback (most recent call last):",
        f'  File "{app}", line 3, in <module>',
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_mistake_that_wherry_finds_is_shown_where_the_user_made_it(tmp_path: Path) -> None:
    text = "import wherry\n@wherry.model(max_batch_sice=3)\ndef f(x: list[str]) -> list[str]: ...\n"
    app = write(tmp_path / "mistaken.py", text)
    with pytest.raises(TargetRaised) as raised:
        load_target(str(app))
    assert load_failure(raised.value) == (
        "mistaken.py:2: model 'f': unknown setting 'max_batch_sice';"
        " did you mean 'max_batch_size'?",
        "",
    )


def test_a_traceback_ends_with_the_users_line_when_wherry_refuses_what_it_does(
    tmp_path: Path,
) -> None:
    text = "import wherry\n\ndef f(x):\n    wherry.model(max_batch_sice=1)(print)\n"
    app = write(tmp_path / "refused.py", text)
    module = import_file("refused", str(app))
    with pytest.raises(ConfigError) as raised:
        module.f([])
    lines = user_traceback(raised.value).splitlines()
    assert f'  File "{app}", line 4, in f' in lines
    assert lines[-1].startswith("wherry.core.values.errors.ConfigError: ")
    assert str(Path(wherry.__file__).parent) not in "\n".join(lines)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("llm:/nowhere", "no such folder: /nowhere"),
        ("llm:/nowhere/", "no such folder: /nowhere/"),
        ("llm:~/nowhere?cache_gb=1", "no such folder: ~/nowhere"),
        ("llm:./nowhere", "no such folder: ./nowhere"),
        ("llm:nowhere", "no such folder: nowhere; a hub id is organisation/model"),
        ("llm:some/nowhere.gguf", "no such file: some/nowhere.gguf"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_named(target: str, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        load_target(target)
    assert str(raised.value) == message


def test_a_file_that_exits_has_raised(tmp_path: Path) -> None:
    with pytest.raises(TargetRaised):
        load_target(str(write(tmp_path / "exits.py", "raise SystemExit(4)")))


@pytest.mark.parametrize("engine", ["llm", "llama-cpp", "vllm"])
def test_a_checkpoint_is_named_behind_its_engine(engine: str) -> None:
    found = load_targets([f"{engine}:models/Small-1B{'' if engine == 'llm' else '.gguf'}"])
    assert isinstance(found, list)
    (model,) = found
    assert model.config().name.startswith("Small-1B")
    with pytest.raises(TargetError, match=f"{engine}: names no checkpoint; write {engine}:"):
        load_targets([f"{engine}:"])


@pytest.fixture
def _every_engine_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", bool)


@pytest.mark.usefixtures("_every_engine_is_installed")
def test_arguments_of_an_engine_may_follow_its_checkpoint(tmp_path: Path) -> None:
    def model(target: str) -> LLM:
        (found,) = load_targets([target])  # type: ignore[misc]
        assert isinstance(found, LLM)
        return found

    config = tmp_path / "config.json"
    config.write_text("{}")
    chat = model(f"llm:{tmp_path}?quantization=int8&cache_gb=2.5&name=chat&threads=1")
    assert (chat.source, chat.config().name) == (str(tmp_path), "chat")
    wanted = {"quantization": "int8", "cache_gb": 2.5, "threads": 1}
    assert wanted.items() <= chat._options.items()
    (tmp_path / "odd?a=1").mkdir()
    config.rename(tmp_path / "odd?a=1" / "config.json")
    assert model(f"llm:{tmp_path}/odd?a=1").source == f"{tmp_path}/odd?a=1"
    for target, problem in (
        ("llm:x/y?cache_gb", "'cache_gb' after the checkpoint's name is not of the form"),
        ("llm:?threads=1", "names no checkpoint"),
        ("llm:x/y?colour=red", "unknown setting 'colour'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(problem)):
            model(target).config()


@pytest.mark.usefixtures("_every_engine_is_installed")
def test_the_files_of_a_checkpoint_choose_its_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["StrangeForCausalLM"]}')
    (model,) = load_targets([f"llm:{tmp_path}"])  # type: ignore[misc]
    assert isinstance(model, LLM)
    assert model._options["engine"] == "auto"  # it chooses between its own two when it is loaded
    (forced,) = load_targets([with_engine(f"llm:{tmp_path}", "transformers")])  # type: ignore[misc]
    assert isinstance(forced, LLM)
    assert forced._options["engine"] == "transformers"
    for engine, problem in (
        ("wherry", "not computed exactly"),
        ("llama.cpp", r"reads \.gguf files only"),
        ("tgi", "engine must be one of auto, wherry"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_targets([with_engine(f"llm:{tmp_path}", engine)])
    with pytest.raises(ConfigError, match=r"no config\.json there"):
        load_targets([f"llm:{tmp_path.parent}"])
    damaged = tmp_path / "x.gguf"
    damaged.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"x\.gguf: "):
        load_targets([f"llm:{damaged}"])


def test_a_setting_names_the_engine_of_checkpoints_only() -> None:
    assert with_engine("llm:a/b", "vllm") == "llm:a/b?engine=vllm"
    assert with_engine("llm:a/b?name=x", "vllm") == "llm:a/b?name=x&engine=vllm"
    for target in ("llm:a/b?engine=wherry", "app.py", "vllm:a/b", "app.py:llm"):
        assert with_engine(target, "transformers") == target
    assert with_engine("llm:a/b", "auto") == "llm:a/b"


def failure(tmp_path: Path, source: str) -> tuple[str, str]:
    (tmp_path / "app.py").write_text(source)
    with pytest.raises(TargetRaised) as raised:
        load_target("app.py")
    return load_failure(raised.value)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import wherry\ndef f(:\n", "app.py:2: SyntaxError: invalid syntax"),
        ("\nimport nowhere_at_all", "app.py:2: ModuleNotFoundError: No module named 'nowhere_at"),
        ("import wherry\n\nwherry.modle", "app.py:3: AttributeError: module 'wherry' has no attri"),
        ("raise SystemExit('no')", "app.py:1: SystemExit: no"),
    ],
)
def test_a_mistake_at_the_top_level_is_one_line_with_its_place(
    tmp_path: Path, source: str, line: str
) -> None:
    found, text = failure(tmp_path, source)
    assert found.startswith(line)
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (
            "import nowhere_at_all.x",
            f"; install it: {sys.executable} -m pip install nowhere_at_all",
        ),
        ("import json.nowhere", "No module named 'json.nowhere'"),
        ("import wherry\nwherry.modle", "no attribute 'modle'; did you mean 'model'?"),
    ],
)
def test_a_module_that_is_missing_can_be_installed_and_a_misspelt_name_is_guessed(
    tmp_path: Path, source: str, end: str
) -> None:
    assert failure(tmp_path, source)[0].endswith(end)


def test_a_mistake_below_the_target_keeps_the_traceback_to_it(tmp_path: Path) -> None:
    line, text = failure(tmp_path, "import json\njson.loads('{')")
    assert line.startswith("app.py:2: json.decoder.JSONDecodeError: ")
    assert "in raw_decode" in text


def test_a_file_that_hides_the_package_from_workers_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "below" / "app.py", APP)
    write(tmp_path / "below" / "wherry.py", "")
    with pytest.raises(TargetError, match=r"below/wherry\.py hides the package.*: rename the file"):
        load_targets(["below/app.py"])


def test_a_hub_id_without_llm_is_guessed() -> None:
    with pytest.raises(TargetError, match=r"Face hub is llm:org/model-1\.5B$"):
        load_targets(["org/model-1.5B"])
    with pytest.raises(TargetError, match=r"no such file$"):
        load_targets(["org/model.py"])
