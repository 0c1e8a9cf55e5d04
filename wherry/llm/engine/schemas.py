"""Which JSON schema has a grammar that follows a client's schema?

JSON schema allows unnamed members by default, which small models invent without end, and has
keywords that no grammar can follow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

Schema = dict[str, Any]
#: A subschema, and the schema that its references begin at.
Part = tuple[Schema, Schema]

#: Keywords whose values are subschemas: by name, in a list, or one.
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "contains", "additionalProperties")
#: Those whose subschemas describe the same value as the schema that has them.
_SAME_LISTED: Final = ("allOf", "anyOf", "oneOf")
_SAME_SINGLE: Final = ("if", "then", "else", "not")
#: With one of these the members that an object may have depend on more than one schema.
_DEPENDENT: Final = {
    "$dynamicRef", "dependentRequired", "dependentSchemas", "if", "not", "unevaluatedProperties",
}  # fmt: skip
#: Steps after which a schema stays as it is: references can multiply.
_MOST_STEPS: Final = 20_000

#: What llguidance has no grammar for.
_NOT_FOLLOWED: Final = frozenset(
    (
        "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "contains", "dependencies",
        "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    )
)  # fmt: skip
_FORMATS: Final = frozenset(
    (
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown",
        "uri", "uuid",
    )
)  # fmt: skip
#: Of regular expressions: to look ahead or behind, and to repeat what was found.
_BEYOND_REGULAR: Final = re.compile(r"\(\?<?[=!]|(?<!\\)(?:\\\\)*\\[1-9k]")


def closed(schema: Schema) -> Schema:
    """The schema with `additionalProperties: false` where it does not say anything about them.

    An object that several subschemas describe together is left open.
    """
    made = _copy(schema)
    parts = [(part, root) for part, root, _ in _parts(made)]
    left_open = _described_together(parts)
    if left_open is None:
        return schema
    for part, _ in parts:
        names, required = part.get("properties"), part.get("required", [])
        if (
            id(part) not in left_open
            and isinstance(names, dict)
            and isinstance(required, list)
            and names.keys() >= {*required}
        ):
            part.setdefault("additionalProperties", "patternProperties" in part)
    return made


def loosened(schema: Schema) -> tuple[Schema, list[str]]:
    """The schema without what no grammar can follow, and the places of that in it.

    `oneOf` becomes `anyOf`, of which it is named nowhere: most alternatives exclude each other.
    """
    made = _copy(schema)
    left_out: list[str] = []
    for part, _, place in list(_parts(made)):
        dropped = [key for key in part if not _can_follow(part, key)]
        left_out += [f"{place}{key}" for key in dropped if part.pop(key) is not False]
        if "oneOf" in part and "anyOf" not in part:
            part["anyOf"] = part.pop("oneOf")
    return made, left_out


def _can_follow(part: Schema, key: str) -> bool:
    value = part[key]
    if key == "format":
        return value in _FORMATS if isinstance(value, str) and _may_be_text(part) else True
    if key == "pattern":
        return not isinstance(value, str) or _BEYOND_REGULAR.search(value) is None
    return key not in _NOT_FOLLOWED


def _may_be_text(part: Schema) -> bool:
    types = part.get("type", "string")
    return "string" in (types if isinstance(types, list) else [types])


def _copy(schema: Schema) -> Schema:
    made: Schema = msgspec.json.decode(msgspec.json.encode(schema))
    return made


def _parts(schema: Schema) -> Iterator[tuple[Schema, Schema, str]]:
    """A schema and its subschemas, each with the schema that its references begin at and its
    place; but none of those that are conditions."""
    left: list[tuple[Any, Schema, str]] = [(schema, schema, "")]
    while left:
        part, root, place = left.pop()
        if not isinstance(part, dict):  # true, false, or invalid, which llguidance reports
            continue
        root = part if "$id" in part else root
        yield part, root, place
        for key in _NAMED:
            if isinstance(subs := part.get(key), dict):
                left += [(sub, root, f"{place}{key}.{name}.") for name, sub in subs.items()]
        for key in _LISTED:
            if isinstance(subs := part.get(key), list):
                left += [(sub, root, f"{place}{key}[{i}].") for i, sub in enumerate(subs)]
        left += [(part.get(key), root, f"{place}{key}.") for key in _SINGLE]


def _described_together(parts: list[Part]) -> set[int] | None:
    """The ids of subschemas that describe one object with others; None if they are too many."""
    found: set[int] = set()
    seen: set[frozenset[int]] = set()
    groups = [[part] for part in parts if _voices(part[0]) > 1]
    steps = 0
    while groups:
        same = list(_of_same_value(groups.pop()))
        steps += len(same)
        if steps > _MOST_STEPS:
            return None
        ids = frozenset(id(part) for part, _ in same)
        if ids in seen:
            continue
        seen.add(ids)
        found |= ids
        inner: defaultdict[str | None, list[tuple[Any, Schema]]] = defaultdict(list)
        for part, root in same:
            properties = part.get("properties")
            for name, sub in properties.items() if isinstance(properties, dict) else ():
                inner[name].append((sub, root))
            inner[None].append((part.get("items"), root))
        for group in inner.values():
            group = [one for one in group if isinstance(one[0], dict)]
            if len(group) > 1:
                groups.append(group)
    return found


def _voices(part: Schema) -> int:
    """How many subschemas describe the members of one object."""
    if part.keys() & _DEPENDENT:
        return 2
    every = part.get("allOf")
    alone = sum(key in part for key in ("properties", "$ref", "anyOf", "oneOf"))
    return alone + (len(every) if isinstance(every, list) else 0)


def _of_same_value(group: list[Part]) -> Iterator[Part]:
    """These, and all subschemas that describe the same value as they."""
    left: list[tuple[Any, Schema]] = [*group]
    seen: set[int] = set()
    while left:
        part, root = left.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        root = part if "$id" in part else root
        yield part, root
        subs = [part.get(key) for key in _SAME_SINGLE]
        for key in _SAME_LISTED:
            subs += part[key] if isinstance(part.get(key), list) else ()
        depending = part.get("dependentSchemas")
        subs += depending.values() if isinstance(depending, dict) else ()
        left += [(sub, root) for sub in subs]
        left.append((_pointed_at(root, part.get("$ref")), root))


def _pointed_at(root: Schema, ref: Any) -> Any:
    """What a reference within the schema points at; None if there is nothing."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return None
    found: Any = root
    for name in ref.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
