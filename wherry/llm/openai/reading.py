"""How does a body become a request, and what of it is refused or ignored?

A depth that the JSON parser still takes may be too much for what reads the values later:
templates, grammars, other processes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge
from wherry.llm.openai.errors import BadField
from wherry.server.api import LARGE_BYTES, check_values

#: What 64 bits hold: a larger number could not even be passed to the model.
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
#: The same, at least one.
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
#: A token, by its number.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
#: The most alternatives per token whose log probabilities a request can get.
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=20)]


#: How deeply arrays and objects may be nested; real schemas have a tenth of it.
MAX_DEPTH: Final = 100
_TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} deep"
_HALF: Final = "has half of a surrogate pair, which is not Unicode text"


def check_depth(body: Buffer, where: str | None = None) -> None:
    """Raise BadField, for the field that has it, if JSON is nested more than MAX_DEPTH deep.
    RequestTooLarge. Costs next to nothing for bodies of few brackets."""
    if len(body) <= LARGE_BYTES:
        text = bytes(body)  # the same object, as a body most often is
        if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
            return
    try:
        check_values(body)
    except RequestTooLarge:
        raise
    except InvalidRequest:
        raise BadField(where, _TOO_DEEP) from None


def json_in(text: str, where: str) -> Any:
    """The JSON value that a text of the request holds, within the same bounds as the request.
    BadField names the text's field; RequestTooLarge."""
    encoded = text.encode()
    check_depth(encoded, where)
    try:
        return msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        raise BadField(where, "is not JSON") from None


def fault_of(body: Buffer, problem: Exception) -> BadField:
    """Why a body is not JSON, by the parser's error. Of half of a surrogate pair, as where a client
    cut a text in an emoji, the parser may report that the body was truncated."""
    try:
        members = json.loads(bytes(body), parse_constant=str)
    except (ValueError, RecursionError):
        members = None
    for name, value in members.items() if isinstance(members, dict) else ():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            own = name.isprintable()  # else it is the name that has it
            return BadField(name, _HALF) if own else BadField(None, f"a field's name {_HALF}")
    return BadField(None, f"the body is not JSON: {problem}")


Fields = TypeVar("Fields", bound=msgspec.Struct)

#: Longest name of a field, in characters, that is compared with the known ones, or repeated.
MAX_NAME_CHARS: Final = 64
#: What some clients put in front of UTF-8, without meaning.
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
#: The message for an unknown field.
UNKNOWN: Final = "is not a field that is known here"
#: The most names in a header.
MAX_NAMES: Final = 16
#: What may not stand in a name of that list.
_UNFIT: Final = re.compile(r"[^!-+\--~]")


class NotDone(msgspec.Struct, frozen=True):
    """A known field that is not implemented: refused, unless its value is one of `neutral`.

    It is never ignored: the caller counts on its effect.
    """

    #: Values without effect.
    neutral: tuple[Any, ...] = ()
    #: What to send in its place.
    use: str = ""

    @property
    def instead(self) -> str:
        return f"; send {self.use} instead" if self.use else ""

    def is_neutral(self, value: bytes) -> bool:
        """Whether this JSON is one of the values without effect."""
        try:
            return msgspec.json.decode(value) in self.neutral
        except msgspec.ValidationError:  # a number beyond all floats
            return False


def decoded(body: Buffer, kind: type[Fields], ignored: list[str] | None = None) -> Fields:
    """A request's body; BadField names what is wrong in it.

    An unknown field is left out and its name appended to `ignored`; None: it is refused.
    """
    if body[:3] == BYTE_ORDER_MARK:
        body = bytes(body)[3:]
    check_depth(body)
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            if not _is_unknown(str(error)):
                raise
            return msgspec.json.decode(_known(body, kind, ignored), type=kind)
    except msgspec.ValidationError as error:
        raise named(str(error), kind) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise fault_of(body, error) from None


def header_of(ignored: Sequence[str]) -> str:
    """The names of ignored fields as the value of a header: short, and nothing but ASCII."""
    names = [_UNFIT.sub("?", name[:MAX_NAME_CHARS]) for name in ignored[:MAX_NAMES]]
    return ", ".join([*names, "..."] if len(ignored) > MAX_NAMES else names)


def _known(
    body: Buffer, kind: type[msgspec.Struct], ignored: list[str] | None, where: str = ""
) -> bytes:
    """An object without its unknown fields, here and in the objects and lists in it."""
    names = {*kind.__struct_fields__, kind.__struct_config__.tag_field}
    inner = _objects(kind)
    not_done: Mapping[str, NotDone] = getattr(kind, "not_done", {})
    kept: dict[str, msgspec.Raw] = {}
    for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items():
        if name in inner:
            value = _known_value(value, inner[name], ignored, f"{where}{name}")
        elif name not in names:
            text = bytes(value)
            if text == b"null":  # as if absent
                continue
            if name in not_done:
                if not not_done[name].is_neutral(text):
                    raise BadField(f"{where}{name}", f"is not supported{not_done[name].instead}")
                continue
            if ignored is not None:
                ignored.append(f"{where}{name}")
                continue
        kept[name] = value
    return msgspec.json.encode(kept)


def _known_value(
    value: msgspec.Raw, kinds: _Kinds, ignored: list[str] | None, where: str
) -> msgspec.Raw:
    """An object of one of these kinds, or a list of such, without unknown fields."""
    text = bytes(value)
    if text.startswith(b"["):
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
        known = [
            _known_value(item, kinds, ignored, f"{where}[{i}]") for i, item in enumerate(items)
        ]
        return msgspec.Raw(msgspec.json.encode(known))
    if not text.startswith(b"{"):
        return value
    kind = kinds.get(None)
    if kind is None:
        tag = msgspec.json.decode(text, type=_Tagged).type
        kind = kinds.get(tag) if isinstance(tag, str) else None
    return value if kind is None else msgspec.Raw(_known(text, kind, ignored, f"{where}."))


class _Tagged(msgspec.Struct):
    type: Any = None


#: Objects whose members are all known, by their tags; None: of the only kind, which has none.
_Kinds = dict[str | None, type[msgspec.Struct]]


@cache
def _objects(kind: type[msgspec.Struct]) -> dict[str, _Kinds]:
    """The fields that hold such objects."""
    found: dict[str, _Kinds] = {}
    for field in msgspec.structs.fields(kind):
        for part in _parts(field.type):
            config = getattr(part, "__struct_config__", None)
            if config is not None and config.forbid_unknown_fields:
                found.setdefault(field.name, {})[config.tag] = part
    return found


def _is_unknown(problem: str) -> bool:
    return problem.startswith("Object contains unknown field")


def named(problem: str, kind: type[msgspec.Struct], where: str = "") -> BadField:
    """msgspec's message with the field's name in front; for an unknown field, also which known one
    may be meant. `where` is the place of what was read, if that is not the whole body."""
    text, _, place = problem.partition(" - at `")
    if place.startswith("key` in `"):
        text, place = f"its keys: {text[0].lower()}{text[1:]}", place.removeprefix("key` in `")
    field = place.removeprefix("$").strip("`").replace("[...]", "")  # a member whose name is free
    field = (where + field).lstrip(".")
    if _is_unknown(text):
        name = text.split("`")[1]
        path = f"{field}.{name}" if field else name
        near = kind.__struct_fields__ if len(name) <= MAX_NAME_CHARS else ()
        close = difflib.get_close_matches(name, near, n=1, cutoff=0.75)
        hint = f"; did you mean '{close[0]}'?" if close and not field else ""
        return BadField(path, UNKNOWN + hint)
    if text.startswith("Object missing required field"):
        name = text.split("`")[1]
        return BadField(f"{field}.{name}" if field else name, "is missing")
    if text.startswith(_NOT_AMONG) and (among := _choices(kind, field)):
        value = text.removeprefix(_NOT_AMONG)
        value = value if len(value) <= MAX_NAME_CHARS else f"{value[:MAX_NAME_CHARS]}..."
        return BadField(field, f"must be one of {', '.join(map(repr, among))}, not {value}")
    return BadField(field or None, text[0].lower() + text[1:].replace("`", ""))


#: msgspec's message for a value that is not one of a Literal's.
_NOT_AMONG: Final = "Invalid enum value "


def _choices(kind: Any, field: str) -> list[Any]:
    """The values of the field's Literal; empty if it has none."""
    for name in re.sub(r"\[\d*\]", "", field).split("."):
        members = {
            member.encode_name: member.type
            for part in _parts(kind)
            if hasattr(part, "__struct_fields__")
            for member in msgspec.structs.fields(part)
        }
        kind = members.get(name)
    return [one for part in _parts(kind) if get_origin(part) is Literal for one in get_args(part)]


def _parts(kind: Any) -> Iterator[Any]:
    """The types of which a type is made, down to Literals and Structs."""
    yield kind
    if get_origin(kind) is not Literal:
        for part in get_args(kind):
            yield from _parts(part)
