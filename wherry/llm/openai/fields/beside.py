"""Which fields say how a model is to read, or which numbers it is to tell?

What a model reads and makes is its own business: such a field is an input of the same name, of a
model that has one. Of others it is refused, unless its value is what happens anyway.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from wherry.core.api import Column, Columns, InvalidRequest, LoadedModel, column_of_value
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.kinds import Whole

#: The fields, and the values of each that ask for nothing.
BESIDE: Final[dict[str, tuple[Any, ...]]] = {
    "truncate_prompt_tokens": (-1,),
    "truncation_side": (),
    "padding": ("do_not_pad",),
    "add_special_tokens": (True,),
    "use_activation": (True,),
    "add_generation_prompt": (False,),
    "continue_final_message": (False,),
    "instruction": ("",),
    "max_tokens_per_query": (0,),
    "max_tokens_per_doc": (0,),
}

#: So many tokens; 0 is none.
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class FieldsBeside(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Those of vectors and scores, as vLLM knows them."""

    #: -1: as many as the model takes, which is its own business.
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    add_special_tokens: bool | None = None
    #: True: vectors of length 1.
    use_activation: bool | None = None
    #: 1 runs first.
    priority: Whole | None = None


class PairsBeside(FieldsBeside):
    """Those of pairs of texts."""

    instruction: str | None = None
    max_tokens_per_query: _Tokens | None = None
    max_tokens_per_doc: _Tokens | None = None


def columns_beside(
    request: msgspec.Struct, loaded: LoadedModel, rows: int, done: frozenset[str] = frozenset()
) -> Columns:
    """What a request says in such fields, as columns of `rows` rows. BadField: the model has no
    input of that name, and the field is not among those that are `done` without it."""
    columns: Columns = {}
    for name, neutral in BESIDE.items():
        value = getattr(request, name, None)
        if value is None:
            continue
        spec = loaded.signature.input(name)
        if spec is None:
            if value not in neutral and name not in done:
                raise BadField(name, f"the model '{loaded.name}' does not support it")
            continue
        try:
            columns[name] = _repeated(column_of_value(spec, value, loaded.name), rows)
        except InvalidRequest as error:
            raise BadField(name, str(error)) from None
    return columns


def _repeated(column: Column, rows: int) -> Column:
    """A column of one row as one of `rows` rows that are alike."""
    return np.repeat(column, rows, axis=0) if isinstance(column, np.ndarray) else column * rows
