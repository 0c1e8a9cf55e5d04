"""What does a user write, and what is one caller's view of it?"""

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from wherry.core.models import model as model_module
from wherry.core.models.changes import changes
from wherry.core.models.model import load_on
from wherry.core.values.errors import ConfigError, ModelNotReady


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    """Say it loud."""
    return [t.upper() for t in text]


class TextEmbedder(wherry.Model):
    max_batch_size = 4
    device = "cpu"

    def __init__(self, size: int = 2, *, scale: float = 1.0) -> None:
        self.size = size
        self.scale = scale

    def execute(self, text: list[str]) -> list[int]:
        return [len(t) for t in text]


def test_a_decorated_function_stays_the_function_it_was() -> None:
    assert shout(["good", "bad"]) == ["GOOD", "BAD"]
    assert shout(text=["x"]) == ["X"]
    assert getattr(shout, "__name__") == "shout"  # noqa: B009 - not in the type
    assert shout.__doc__ == "Say it loud."


def test_the_decorator_works_without_arguments() -> None:
    @wherry.model
    def plain(x: list[int]) -> list[int]:
        return x

    assert plain([1]) == [1]
    assert plain.name == "plain"
    assert plain.config().max_batch_size == 1


def test_decorator_arguments_are_the_configuration() -> None:
    @wherry.model(name="other", version=3, max_queue_size=7)
    def plain(x: list[int]) -> list[int]:
        return x

    config = plain.config()
    assert (config.name, config.version, config.max_queue_size) == ("other", "3", 7)


def test_class_attributes_are_the_configuration() -> None:
    config = TextEmbedder().config()
    assert (config.name, config.max_batch_size) == ("text_embedder", 4)
    assert config.instances[0].device == "cpu"


def test_a_subclass_inherits_and_overrides_the_configuration() -> None:
    class Small(TextEmbedder):
        name = "tiny"
        max_batch_size = 2

    assert Small().name == "tiny"
    config = Small().config()
    assert (config.name, config.max_batch_size, config.instances[0].device) == ("tiny", 2, "cpu")


def test_overrides_are_stronger_than_the_models_own_settings() -> None:
    assert shout.config(max_batch_size=2).max_batch_size == 2
    assert shout.config().max_batch_size == 8
    assert TextEmbedder().config(name="again", device="auto").name == "again"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Embedder", "embedder"), ("MyBERTModel", "my_bert_model"), ("Resnet50", "resnet50")],
)
def test_a_class_name_becomes_a_model_name(name: str, expected: str) -> None:
    made = type(name, (TextEmbedder,), {})
    assert made().name == expected


def test_the_constructors_arguments_are_kept_for_further_copies() -> None:
    assert TextEmbedder(3, scale=2.0).constructed_with == ((3,), {"scale": 2.0})


def test_an_infer_without_a_runtime_says_what_is_missing() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: shout.infer("x"),
        lambda: shout.map(["x"]),
        lambda: shout.stream("x"),  # type: ignore[arg-type]
        lambda: shout.astream("x"),  # type: ignore[arg-type]
        lambda: asyncio.run(shout.ainfer("x")),
    ]
    for call in calls:
        with pytest.raises(ModelNotReady, match=r"'shout' is not loaded.*with wherry\.Runtime"):
            call()


def test_a_mistake_is_an_error_at_import_not_at_the_first_request() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_batch_size'"):
        wherry.model(max_batchsize=4)(lambda x: x)  # type: ignore[call-overload]

    with pytest.raises(ConfigError, match="'x' has no annotation"):

        @wherry.model
        def untyped(x):  # type: ignore[no-untyped-def] # the mistake
            return x


def test_code_for_one_row_cannot_have_batches() -> None:
    with pytest.raises(ConfigError, match=r"takes one row at a time; make its parameters columns"):

        @wherry.model(max_batch_size=4)
        def row(text: str) -> str:
            return text


def test_code_for_columns_needs_a_batch_dimension() -> None:
    with pytest.raises(ConfigError, match=r"max_batch_size is 0.*'text'"):

        @wherry.model(max_batch_size=0)
        def columns(text: list[str]) -> list[str]:
            return text


@pytest.mark.parametrize("name", ["timeout", "priority", "version"])
def test_an_input_may_not_be_called_like_an_argument_of_infer(name: str) -> None:
    def function(x: list[str]) -> list[str]:
        return x

    scope: dict[str, Any] = {}
    exec(f"def function({name}: list[str]) -> list[str]: ...", scope)
    with pytest.raises(ConfigError, match=rf"model 'function': parameter '{name}'.*rename"):
        wherry.model(scope["function"])
    assert wherry.model(function).config().name == "function"


def test_a_model_without_execute_says_so() -> None:
    class Empty(wherry.Model):
        pass

    with pytest.raises(ConfigError, match="execute"):
        Empty().config()


def test_a_pipeline_is_an_async_function_of_one_row() -> None:
    with pytest.raises(ConfigError, match="write `async def sync`"):

        @wherry.pipeline
        def sync(text: str) -> str:
            return text

    for returned in (list[str], str):
        with pytest.raises(ConfigError, match=r"'columns' takes one row.*is a Sequence\[str\]"):

            @wherry.pipeline
            async def columns(text: list[str]) -> returned:  # type: ignore[valid-type]
                return text

    with pytest.raises(ConfigError, match=r"'lists' takes one row"):

        @wherry.pipeline
        async def lists(x: Annotated[list[np.ndarray], wherry.FP32[-1]]) -> list[float]:
            return [0.0]

    @wherry.pipeline
    async def arrays(x: Annotated[np.ndarray, wherry.FP32[2]]) -> list[float]:
        return [float(one) for one in x]

    with wherry.Runtime(arrays) as runtime:
        assert runtime.infer("arrays", x=np.ones(2, np.float32)).tolist() == [1, 1]
        found = runtime.infer_batch("arrays", x=np.ones((3, 2), np.float32))["output"]
        assert [np.asarray(row).tolist() for row in found] == [[1, 1]] * 3

    @wherry.pipeline(name="fine", max_queue_size=3)
    async def pipe(text: str) -> str:
        return text

    assert pipe.config().max_queue_size == 3
    assert asyncio.run(pipe("direct")) == "direct"


def test_a_device_is_written_as_torch_writes_it() -> None:
    assert str(wherry.Device()) == "cpu"
    assert str(wherry.Device("cuda", 1)) == "cuda:1"


def test_a_generator_model_is_still_a_generator_function() -> None:
    @wherry.model
    def count(n: list[int]) -> Iterator[list[int]]:
        yield n

    assert list(count([1])) == [[1]]


def test_a_load_without_a_device_is_called_without() -> None:
    class Plain(wherry.Model):
        def load(self) -> None:  # type: ignore[override]
            self.loaded = True

        def execute(self, text: list[str]) -> list[str]:
            return text

    class Placed(wherry.Model):
        def load(self, device: wherry.Device) -> None:
            self.where = device

        def execute(self, text: list[str]) -> list[str]:
            return text

    plain, placed = Plain(), Placed()
    load_on(plain, wherry.Device())
    load_on(placed, wherry.Device("cuda", 1))
    assert plain.loaded
    assert placed.where == wherry.Device("cuda", 1)


def test_a_class_is_no_function_to_decorate() -> None:
    with pytest.raises(ConfigError, match=r"class Twice\(wherry\.Model\)"):

        @wherry.model
        class Twice:
            def execute(self, text: list[str]) -> list[str]:
                return text


def test_what_has_no_name_is_no_function_to_decorate() -> None:
    def cut(length: int, text: str) -> str:
        return text[:length]

    with pytest.raises(ConfigError, match="is for functions, not partial; wrap it in a def"):
        wherry.model(functools.partial(cut, 3))


def test_a_model_may_be_a_frozen_dataclass() -> None:
    @dataclass(frozen=True)
    class Shout(wherry.Model):
        mark: str = "!"
        instances = 2

        def execute(self, text: str) -> str:
            return text + self.mark

    shout = Shout("?")
    with wherry.Runtime(shout):
        assert shout.infer(text="a") == "a?"
    with pytest.raises(wherry.ModelNotReady):
        shout.infer(text="a")


@pytest.mark.parametrize("field", ["examples", "warmup"])
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"txt": "a"}, r"no input 'txt'; did you mean 'text'\? Its inputs are: text, k, v"),
        ({"text": "a", "times": 2}, "no input 'times'; its inputs are: text, k, v"),
        ({}, "input 'text' is missing"),
        ({"text": 5}, "input 'text' must be a str, not int"),
        ({"text": b"a"}, "input 'text' must be a str, not bytes"),
        ({"text": "a", "k": "2"}, "input 'k' must be INT64 data, not str; it has text"),
        ({"text": "a", "k": [2]}, r"input 'k' has shape \[1\]; one row has shape \[\]"),
        ({"text": "a", "v": [1.0]}, r"input 'v' has shape \[1\]; one row has shape \[2\]"),
        ({"text": "a", 3: "b"}, "no input 3; its inputs are: text, k, v"),
    ],
)
def test_an_example_that_is_no_row_of_its_model_is_told_by_its_place(
    field: str, row: dict[Any, Any], problem: str
) -> None:
    def f(text: str, k: int = 1, v: Annotated[np.ndarray, wherry.FP32[2]] | None = None) -> str:
        return text

    samples: dict[str, Any] = {field: [{"text": "fine"}, row]}
    with pytest.raises(ConfigError, match=rf"model 'f'.* {problem} \({field}\[1\]\)"):
        wherry.model(**samples)(f)


def test_who_copies_a_model_waits_until_its_first_instance_has_noted_the_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first instance is about to load, which changes the object."""
    made = TextEmbedder()
    begun, goes_on = threading.Event(), threading.Event()
    calls = list[int]()

    def slow(*args: Any) -> Any:
        calls.append(1)
        begun.set()
        goes_on.wait(10)
        return changes(*args)

    monkeypatch.setattr(model_module, "changes", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(made.take)
        begun.wait(10)
        second = threads.submit(lambda: (made.take(), made.attribute_changes()))
        goes_on.set()
        assert first.result(10)
        took, seen = second.result(10)
    assert not took
    assert seen is made.attribute_changes()
    assert len(calls) == 1
