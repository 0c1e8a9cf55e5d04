"""Are the settings that type checkers see those that there are, and of their types?"""

import functools
import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from wherry.core.models.config import (
    InstanceGroup,
    ModelConfig,
    QueuePolicy,
    SequenceBatching,
)
from wherry.core.models.settings import (
    FunctionSettings,
    Isolation,
    ModelSettings,
    Rows,
    SettingAttributes,
)

#: Settings of which a program may say more, or only some of the values, than ModelConfig's type.
OTHERWISE: dict[str, Any] = {
    "version": str | int,
    "memory": int | str | None,
    "isolation": Isolation,
    "instances": int
    | InstanceGroup
    | Mapping[str, Any]
    | Sequence[InstanceGroup | Mapping[str, Any]],
    "queue_policies": Sequence[QueuePolicy | Mapping[str, Any]],
    "sequence": SequenceBatching | Mapping[str, Any] | None,
    "warmup": Rows,
    "examples": Rows,
}


def test_the_settings_that_a_program_passes_are_the_fields_of_the_configuration() -> None:
    fields = get_type_hints(ModelConfig)
    expected = {name: OTHERWISE.get(name, loose(kind)) for name, kind in fields.items()}
    assert get_type_hints(ModelSettings) == {**expected, "device": str}


def test_a_function_has_these_and_the_cost_of_its_rows() -> None:
    assert FunctionSettings.__annotations__.keys() - ModelSettings.__annotations__.keys() == {
        "cost"
    }


def test_a_class_has_them_as_attributes_but_for_names_that_models_use() -> None:
    settings = get_type_hints(ModelSettings)
    attributes = get_type_hints(SettingAttributes)
    assert settings.keys() - attributes.keys() == {"name", "version", "device"}
    for name, kind in attributes.items():
        kind = get_args(kind)[0] if get_origin(kind) is ClassVar else kind
        assert kind == without_literals(settings[name]), name


def loose(kind: Any) -> Any:
    """The type with any sequence in place of a tuple."""
    return types.GenericAlias(Sequence, get_args(kind)[:1]) if get_origin(kind) is tuple else kind


def without_literals(kind: Any) -> Any:
    """The type with `str` in place of its values: what a class attribute is inferred to be."""
    if get_origin(kind) is Literal:
        return str
    if get_origin(kind) in (Union, types.UnionType):
        members: list[Any] = [without_literals(one) for one in get_args(kind)]
        return functools.reduce(operator.or_, members)
    return kind
