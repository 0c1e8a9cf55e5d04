import functools
import sys
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import wherry
from tests.worker_models import obedient
from wherry.core.instances.source import MAIN, import_model, sent, source_of


def test_a_model_is_found_by_its_module_and_name() -> None:
    source = source_of(obedient, "obedient")

    assert source.module.name == "tests.worker_models"
    assert import_model(source) is obedient


def test_a_function_that_was_made_a_model_elsewhere_is_found_too() -> None:
    again = wherry.model(obedient.function)

    assert import_model(source_of(again, "obedient")) is obedient


def test_a_main_module_has_another_name_in_its_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import wherry\n@wherry.model\ndef f(x: list[int]) -> list[int]: return x\n")
    module: Any = type(sys)("__main__")
    module.__file__ = str(script)
    exec(script.read_text(), module.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", module)

    source = source_of(module.f, "f")

    assert (source.module.name, source.module.file) == (MAIN, sent(str(script)))
    module.__file__ = None
    with pytest.raises(wherry.ConfigError, match="f of the interactive session cannot be sent"):
        source_of(module.f, "f")


class Options:
    def __init__(self) -> None:
        self.k = 1


class Changed(wherry.Model):
    kind: Any = "as defined"
    made: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.k = 1
        self.words = ["a"]
        self.options = Options()
        self.lock = threading.Lock()
        self.done = threading.Event()

    def execute(self, x: list[int]) -> list[int]:
        return [self.k for _ in x]


@dataclass(eq=False)
class Filled(wherry.Model):
    k: int = 1

    def execute(self, x: list[int]) -> list[int]:
        return [self.k for _ in x]


def made_anew(model: wherry.Model) -> Any:
    return import_model(source_of(model, "m"))


def test_what_is_set_after_the_constructor_is_set_in_a_worker_too() -> None:
    model: Any = Changed()
    assert source_of(model, "m").changes is None
    model.done.set()  # its worker has one of its own
    assert source_of(model, "m").changes is None

    model.k = 100
    model.new = [model]
    model.words.append("b")
    model.options.k = 7
    del model.done

    made = made_anew(model)
    assert made is not model
    assert (made.k, made.words, made.options.k) == (100, ["a", "b"], 7)
    assert made.new == [made]
    assert not hasattr(made, "done")


def test_a_class_that_a_decorator_gives_its_constructor_is_no_exception() -> None:
    model = Filled(k=2)
    assert source_of(model, "m").changes is None
    model.k = 3
    assert made_anew(model).k == 3


def test_what_a_program_sets_in_a_class_is_set_in_a_worker_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Changed, "kind", "as changed")
    source = source_of(Changed(), "m")
    monkeypatch.undo()

    made: Any = import_model(source)
    assert made.kind == "as changed"
    Changed.kind = "as defined"


def test_a_method_that_a_program_replaces_is_replaced_in_a_worker_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, was = Changed(), Changed.execute
    monkeypatch.setattr(Changed, "execute", made_anew)
    source = source_of(model, "m")
    monkeypatch.undo()

    made: Any = import_model(source)
    assert type(made).execute is made_anew
    Changed.execute = was  # type: ignore[method-assign]


def test_a_method_that_a_worker_would_not_find_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    was = Changed.execute
    for method in (lambda *_: [1], functools.wraps(was)(lambda *_: [1]), functools.cache(was)):
        monkeypatch.setattr(Changed, "execute", method)
        with pytest.raises(wherry.ConfigError, match=r"'m': its attribute 'execute', .* set it"):
            source_of(Changed(), "m")


def test_what_a_program_sets_on_a_function_is_set_in_a_worker_too() -> None:
    again: Any = wherry.model(obedient.function)
    again.threshold = 0.5

    made = made_anew(again)
    assert made.threshold == 0.5
    del made.threshold


def test_what_was_set_and_cannot_be_sent_is_refused_by_name() -> None:
    model: Any = Changed()
    model.lookup = lambda: 1
    with pytest.raises(wherry.ConfigError, match=r"'m': its attribute 'lookup', .* set it in load"):
        source_of(model, "m")


def test_what_was_set_in_a_class_and_cannot_be_sent_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Changed, "kind", threading.Lock())
    with pytest.raises(wherry.ConfigError, match=r"'m': its attribute 'kind', .* set it in load"):
        source_of(Changed(), "m")


def test_a_list_of_a_class_that_its_constructor_fills_is_a_workers_own() -> None:
    Changed.made.append(threading.Lock())
    try:
        assert isinstance(made_anew(Changed()), Changed)
    finally:
        Changed.made.clear()


def test_what_load_does_in_a_thread_is_not_sent() -> None:
    model: Any = Changed()
    model.k = 2
    assert model.take()
    model.weights = threading.Lock()
    made = made_anew(model)
    assert made.k == 2
    assert not hasattr(made, "weights")
