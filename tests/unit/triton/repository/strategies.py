"""What may a configuration be? Any, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from wherry.triton.repository.schema import ConfigField, TritonMessage, fields_of
from wherry.triton.repository.triton_config import TritonConfig

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    str: TEXT,
    # Some fields have 32 bits in protobuf, which writes them with seven digits.
    float: st.sampled_from([0.0, 0.5, 1.0, -0.25, 1e10, 1e-10, float("inf"), -float("inf")]),
}


def one(field: ConfigField) -> st.SearchStrategy[Any]:
    if field.is_message:
        return messages(field.kind)
    if field.is_enum:
        return st.sampled_from(field.kind)
    if field.kind is int:
        return st.integers(*field.limits)
    return SCALARS[field.kind]


def values(field: ConfigField) -> st.SearchStrategy[Any]:
    if field.key is not None:
        return st.dictionaries(one(field.key), one(field), max_size=2)
    return st.lists(one(field), max_size=2) if field.many else one(field)


@st.composite
def messages(draw: st.DrawFn, cls: type[TritonMessage]) -> Any:
    """A message with a few of its fields set, and at most one of those that exclude others."""
    fields = fields_of(cls)
    chosen = (
        draw(st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)) if fields else []
    )
    exclusive = [name for name in chosen if name in cls.one_of]
    set_fields = {name: draw(values(fields[name])) for name in chosen if name not in exclusive[1:]}
    return cls(**{fields[name].attribute: value for name, value in set_fields.items()})


def configs() -> st.SearchStrategy[TritonConfig]:
    return messages(TritonConfig)
