"""How do Python's types become JSON schemas that an OpenAPI document refers to?"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec

from wherry.server.http.route import Json

_REF: Final = "#/components/schemas/"
_JSON_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}


class SchemaRegistry:
    """The named schemas of one document. What has a name is there once, and referred to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}
        #: Of each type by its id, with the type, which keeps the id its own.
        self._of_types: dict[tuple[int, str], tuple[Any, Json]] = {}

    def of(self, schema: Any, prefix: str = "") -> Json:
        """The schema of a type; one that is JSON already stays, and has its name from its title.

        `prefix` stands before the names of a user's types: two models may have different ones of
        the same name.
        """
        if not isinstance(schema, dict):
            key = id(schema), prefix
            if key not in self._of_types:
                self._of_types[key] = schema, self._of_type(schema, prefix)
            return self._of_types[key][1]
        if "title" not in schema:
            return schema
        name = _name(schema["title"])
        self.schemas.setdefault(name, schema)
        return {"$ref": _REF + name}

    def _of_type(self, kind: Any, prefix: str) -> Json:
        try:
            (schema,), named = msgspec.json.schema_components(
                [kind], ref_template=_REF + prefix + "{name}"
            )
        except (TypeError, ValueError, RecursionError):
            return {}  # a type of the user's that JSON has no schema for
        for name, component in named.items():
            if getattr(kind, "takes_any_members", False):
                component.pop("additionalProperties", None)
            # Generators of clients name their classes by the title.
            self.schemas[_name(prefix + name)] = {**_renamed(component), "title": prefix + name}
        whole: Json = _renamed(schema)
        return whole

    def sharpen(self, more: dict[str, Json]) -> None:
        """Say more than the types do, of those schemas that are here: other keywords, and other
        schemas of the members that they have."""
        for name, keywords in more.items():
            if (schema := self.schemas.get(name)) is None:
                continue
            members = schema["properties"]
            sharper = keywords["properties"].items()
            members |= {member: value for member, value in sharper if member in members}
            self.schemas[name] = {**schema, **keywords, "properties": members}


def _name(text: str) -> str:
    """A name that a component may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_")


def _renamed(value: Any) -> Any:
    """A schema with references by the names that components may have, and with what generators of
    clients ask for: the type of an enum, and no default that means "not given"."""
    if isinstance(value, dict):
        made = {key: _renamed(member) for key, member in value.items()}
        kinds = {type(one) for one in made.get("enum", ())}
        if "type" not in made and len(kinds) == 1 and (kind := _JSON_TYPES.get(kinds.pop())):
            made["type"] = kind
        if "anyOf" in made and made.get("default", 0) is None:
            del made["default"]
        return made
    if isinstance(value, list):
        return [_renamed(element) for element in value]
    if isinstance(value, str) and value.startswith(_REF):
        return _REF + _name(value.removeprefix(_REF))
    return value


def without_raw(schema: Any) -> Any:
    """The same schema; of a Struct of ours, see `_taken`."""
    return (
        _taken(schema)
        if isinstance(schema, type) and issubclass(schema, msgspec.Struct)
        else schema
    )


@cache
def _taken(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same Struct with any value where it keeps JSON as text, of which there is no schema.

    It takes members that are not known, and so do the Structs in it: they are ignored and named in
    a header.
    """
    given: list[Any] = []
    for member in msgspec.structs.fields(kind):
        if member.type is msgspec.Raw:
            given.append((member.encode_name, Any, None))
        elif member.required:
            given.append((member.encode_name, member.type))
        else:
            given.append((member.encode_name, member.type, member.default))
    return msgspec.defstruct(
        kind.__name__,
        given,
        kw_only=True,
        namespace={"__doc__": kind.__doc__, "takes_any_members": True},
    )
