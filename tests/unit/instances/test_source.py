import sys
from typing import Any

import pytest

import wherry
from tests.worker_models import obedient
from wherry.instances.source import MAIN, import_model, sent, source_of


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
