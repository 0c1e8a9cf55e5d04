"""Are the settings that type checkers see those that there are, and of their types?"""

import types
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

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


def loose(kind: Any) -> Any:
    """The type with any sequence in place of a tuple."""
    return types.GenericAlias(Sequence, get_args(kind)[:1]) if get_origin(kind) is tuple else kind
