"""Which fields say what an answer must look like, and how does the engine call that?"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from wherry.llm.engine.constraint import MOST_CHARACTERS
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.json_faults import json_in


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    #: Where llama.cpp's clients have it, with either type.
    schema: dict[str, Any] | None = None

    def constraint(self) -> dict[str, Any] | None:
        """None: the answer is any text."""
        if self.type == "text":
            return None
        schema = self.schema
        if self.type == "json_schema" and self.json_schema is not None:
            schema = self.json_schema.schema if schema is None else schema
        if schema is not None:
            return {"json_schema": schema}
        if self.type == "json_schema":
            raise BadField("response_format.json_schema.schema", "is missing")
        return {"json_object": True}


Choices = Annotated[list[str], msgspec.Meta(min_length=1)]

#: vLLM's words for what an answer must look like, and the engine's.
FORMS: Final = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form that the answer must have, in vLLM's field."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def constraint(self) -> dict[str, Any]:
        where = "structured_outputs"
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        value = {FORMS.get(n, n): v for n, v in values.items() if v not in (None, False)}
        if len(value) != 1:
            raise BadField(where, f"give exactly one of {', '.join(self.__struct_fields__)}")
        if "json_schema" in value:
            return {"json_schema": schema_of(value["json_schema"], f"{where}.json")}
        return value


def schema_of(value: Any, where: str) -> dict[str, Any]:
    """A JSON schema, which vLLM takes as text, too."""
    if isinstance(value, str):
        text, value = value, json_in(value, where)
        if len(text) > MOST_CHARACTERS:  # of which the engine would say so later
            problem = f"it has {len(text)} characters; at most {MOST_CHARACTERS} are read"
            raise BadField(where, problem)
    if not isinstance(value, dict):
        raise BadField(where, "must be a JSON schema, an object")
    return value
