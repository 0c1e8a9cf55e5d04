"""What may stand in a request to /v1/responses, its tools included, and which chat is it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from wherry.llm.engine.chat_form import text_of
from wherry.llm.openai.chat_request import (
    MOST_TOOLS,
    PARTS,
    ROLES,
    AllowedTools,
    ChatRequest,
    NamedFunction,
    NamedTool,
    SomeTools,
    arguments_in,
    content_in,
)
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation_request import JsonSchema, ResponseFormat
from wherry.llm.openai.reading import NotDone, Whole

Json = dict[str, Any]
#: Between a namespace and a function in the name that a model sees, as in vLLM.
SEPARATOR: Final = "__"
#: Tools that OpenAI's server runs. None exists here, so none is offered to the model.
HOSTED: Final = frozenset(
    (
        "web_search", "web_search_2025_08_26", "web_search_preview",
        "web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation",
        "mcp", "tool_search",
    )
)  # fmt: skip


class ResponseTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function, a namespace of functions, or a tool that is not offered to the model."""

    type: str
    name: str = ""
    # Null and absent differ to a chat template.
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    strict: bool | msgspec.UnsetType | None = msgspec.UNSET
    #: Those of a namespace.
    tools: (
        Annotated[list[ResponseTool], msgspec.Meta(max_length=MOST_TOOLS)] | msgspec.UnsetType
    ) = msgspec.UNSET


def functions_of(tools: Sequence[ResponseTool]) -> list[Json]:
    """The functions that the model is offered, those of namespaces by both names. BadField."""
    made = [
        {"type": "function", "function": _function(tool, namespace)}
        for namespace, tool in _functions(tools)
    ]
    if len(made) > MOST_TOOLS:
        raise BadField("tools", f"must be at most {MOST_TOOLS} functions")
    return made


def flat_name(namespace: str, name: str) -> str:
    """The name by which a model calls a function."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def _functions(tools: Sequence[ResponseTool]) -> Iterator[tuple[str, ResponseTool]]:
    """Each function with its namespace, or ""."""
    for place, tool in enumerate(tools):
        if tool.type == "namespace":
            inner = [] if tool.tools is msgspec.UNSET else tool.tools
            for i, one in enumerate(inner):
                _check(one, f"tools[{place}].tools[{i}]")
                yield tool.name, one
        elif tool.type not in HOSTED:
            _check(tool, f"tools[{place}]")
            yield "", tool


def _check(tool: ResponseTool, where: str) -> None:
    if tool.type != "function":
        raise BadField(f"{where}.type", "only functions are supported, and namespaces of them")
    if not tool.name:
        raise BadField(f"{where}.name", "is missing")


def _function(tool: ResponseTool, namespace: str) -> Json:
    sent: Json = msgspec.to_builtins(tool)
    names = ("name", "description", "parameters", "strict")
    return {n: sent[n] for n in names if n in sent} | {"name": flat_name(namespace, tool.name)}


#: Of responses.
OF_RESPONSES: Final = {
    "prompt": NotDone(use="its text as input"),
    "max_tool_calls": NotDone(),
    "background": NotDone((False,), use="stream: true"),
    "conversation": NotDone(use="previous_response_id"),
    "context_management": NotDone(([],)),
    "top_logprobs": NotDone((0,), use="a chat"),
}


class Obfuscation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    #: Padding that hides the sizes of events: never sent here.
    include_obfuscation: bool = False


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    #: The model decides how much it writes: only OpenAI's default is accepted.
    verbosity: Literal["medium"] | None = None


class ResponseText(msgspec.Struct):
    """The form of a response's text."""

    format: TextFormat


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    #: Thoughts are always sent in full: there is nothing to choose.
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ToolByName(
    msgspec.Struct, kw_only=True, tag_field="type", tag="function", forbid_unknown_fields=True
):
    name: str


class SomeByName(
    msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True
):
    mode: Literal["auto", "required"]
    tools: list[ToolByName]


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_RESPONSES

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponseTool], msgspec.Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolByName | SomeByName | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    stream_options: Obfuscation | None = None
    metadata: dict[str, str] | None = None
    #: auto: as in vLLM, the beginning of a conversation that is too long is left out.
    truncation: Literal["auto", "disabled"] | None = None
    #: Thoughts are not secret here: there is nothing to encrypt.
    include: list[Literal["reasoning.encrypted_content"]] | None = None

    # These need kept responses.
    store: bool | None = None
    previous_response_id: str | None = None

    # Accepted without effect on the answer.
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    n: ClassVar[None] = None
    priority: ClassVar[None] = None

    def check_kept(self, *, keeps: bool) -> None:
        """Refuse fields that need kept responses: BadField. `keeps`: responses are kept."""
        for field, problem in KEPT.items():
            if getattr(self, field) and not keeps:
                raise BadField(field, problem)

    def hosted(self) -> list[str]:
        """The places of tools that OpenAI's server would run; none runs here."""
        return [f"tools[{n}]" for n, tool in enumerate(self.tools or ()) if tool.type in HOSTED]

    def call_names(self) -> dict[str, Json]:
        """The members that name a call of a namespace's function in items, by the name that a model
        calls."""
        return {
            flat_name(namespace, tool.name): {"name": tool.name, "namespace": namespace}
            for namespace, tool in _functions(self.tools or ())
            if namespace
        }

    def offered(self) -> list[ResponseTool]:
        """The tools that the model is offered, as a response repeats them: null for what is
        absent."""
        tools = [msgspec.structs.replace(t) for t in self.tools or () if t.type not in HOSTED]
        for tool in tools:
            tool.description = None if tool.description is msgspec.UNSET else tool.description
            tool.strict = None if tool.strict is msgspec.UNSET else tool.strict
        return tools

    def items(self) -> list[dict[str, Any]]:
        """The items of the request's own input: a text is the user's message."""
        if not isinstance(self.input, str):
            return self.input
        return [{"type": "message", "role": "user", "content": self.input}]

    def unknown(self) -> list[str]:
        """The places of unknown members in the items of the request's own input."""
        return [
            where
            for place, item in enumerate(self.items())
            for where in _unknown(item, f"input[{place}]")
        ]

    def references(self) -> Iterator[tuple[str, str]]:
        """The places of the items that only refer to others, and the ids of those."""
        for place, item in enumerate(self.items()):
            if item.get("type") == "item_reference":
                yield f"input[{place}]", _word(item, "id", f"input[{place}]")

    def whole(self, items: Mapping[str, dict[str, Any]]) -> ResponsesRequest:
        """The request with these items, by their ids, in the places of those that refer to them."""
        input_items = list(self.items())
        for place, item in enumerate(input_items):
            if item.get("type") == "item_reference":
                id = item["id"]
                if id not in items:
                    raise BadField(f"input[{place}]", f"no item '{id[:80]}' is kept: send it whole")
                input_items[place] = items[id]
        return msgspec.structs.replace(self, input=input_items)

    def chat(self, before: Sequence[dict[str, Any]] = ()) -> ChatRequest:
        """The chat that has the same answer. `before`: the items of the conversation so far."""
        return self._chat(self._messages(before))

    def _chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        return ChatRequest(
            model=self.model,
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            truncate_prompt_tokens=-1 if self.truncation == "auto" else None,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=self._format(),
            tools=None if self.tools is None else functions_of(self.tools),
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
        )

    def repeated(self) -> dict[str, Any]:
        """Return the fields of the request that a response repeats, with defaults for absent
        ones."""
        form = None if self.text is None else self.text.format
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "text": ResponseText(form or TextFormat(type="text")),
            "tools": self.offered(),
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": self.reasoning or Reasoning(),
            "metadata": self.metadata or {},
            "previous_response_id": self.previous_response_id,
            "truncation": self.truncation or "disabled",
        }

    def named(self, blamed: str) -> str:
        return NAMES.get(name := self._chat([]).named(blamed), name)

    def _choice(self) -> Literal["none", "auto", "required"] | NamedTool | AllowedTools | None:
        match self.tool_choice:
            case ToolByName(name=name):
                return _named(name)
            case SomeByName(mode=mode, tools=tools):
                some = SomeTools(mode=mode, tools=[_named(tool.name) for tool in tools])
                return AllowedTools(allowed_tools=some)
            case choice:
                return choice

    def _format(self) -> ResponseFormat | None:
        form = None if self.text is None else self.text.format
        if form is None or form.type != "json_schema":
            return None if form is None else ResponseFormat(type=form.type)
        if form.schema is None:
            raise BadField("text.format.schema", "is missing")
        return ResponseFormat(type=form.type, json_schema=JsonSchema(schema=form.schema))

    def _messages(self, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        input_items: list[dict[str, Any]] = []
        if self.instructions:
            input_items.append({"role": "system", "content": self.instructions})
        if not self.input and not before and not isinstance(self.input, str):
            raise BadField("input", "is empty")
        thoughts = ""

        def only_thought() -> None:
            """A turn of thoughts alone is a message, too, so that roles alternate."""
            if thoughts and not (input_items and input_items[-1]["role"] == "assistant"):
                silent = {"role": "assistant", "content": "", "reasoning_content": thoughts}
                input_items.append(silent)

        for place, item in enumerate([*before, *self.items()], -len(before)):
            where = f"input[{place}]" if place >= 0 else "previous_response_id"
            if item.get("type") == "reasoning":
                thoughts += _thoughts(item, where)
                continue
            message = _message(item, where)
            if thoughts and message["role"] == "assistant":
                message["reasoning_content"] = thoughts
            else:
                only_thought()
            thoughts = ""
            merges = message.keys() == {"role", "tool_calls"}
            if input_items and merges and input_items[-1]["role"] == "assistant":
                # Calls are items of their own; to a model they belong to its message before.
                input_items[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
            else:
                input_items.append(message)
        only_thought()
        return input_items


NOTHING_KEPT: Final = "responses are not kept here (--max-kept-responses 0, or --fronts)"
#: Fields that need kept responses where none are kept, and what to do instead.
KEPT: Final = {
    "store": f"{NOTHING_KEPT}: send store: false",
    "previous_response_id": f"{NOTHING_KEPT}: send what came before it as items of input",
}
#: Fields of the chat by their names in the request.
NAMES: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "chat_template_kwargs": "reasoning.effort",
    "truncate_prompt_tokens": "truncation",
}
#: Members of an item that holds thoughts.
THOUGHTS: Final = ("content", "summary")


#: Members of each item beside `id`, `type` and `status`; of a part, `type` and what an answer has.
MEMBERS: Final = {
    "message": frozenset(("role", "content", "phase")),
    "reasoning": frozenset((*THOUGHTS, "encrypted_content")),
    "function_call": frozenset(("name", "arguments", "call_id", "namespace")),
    "function_call_output": frozenset(("call_id", "output")),
}
OF_ITEMS: Final = frozenset(("id", "type", "status"))
OF_PARTS: Final = frozenset(("type", "annotations", "logprobs", *PARTS.values()))


def _unknown(item: Mapping[str, Any], where: str) -> Iterator[str]:
    """The places of unknown members in an item and its parts; null counts as absent."""
    kind = item.get("type", "message")
    members = MEMBERS.get(kind) if isinstance(kind, str) else None
    if members is None:  # refused, or a reference to one
        return
    for name, value in item.items():
        if name in members and isinstance(value, list):
            for i, part in enumerate(value):
                input_items = part.items() if isinstance(part, dict) else ()
                yield from (
                    f"{where}.{name}[{i}].{n}"
                    for n, v in input_items
                    if n not in OF_PARTS and v is not None
                )
        elif name not in members and name not in OF_ITEMS and value is not None:
            yield f"{where}.{name}"


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An item of the input as a message."""
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in ROLES[:4]:
            raise BadField(f"{where}.role", f"must be one of {', '.join(ROLES[:4])}")
        content = content_in(item.get("content"), f"{where}.content")
        return {"role": item["role"], "content": content}
    if kind == "function_call":
        name, arguments, id = (_word(item, n, where) for n in ("name", "arguments", "call_id"))
        name = flat_name(str(item.get("namespace") or ""), name)
        function = {"name": name, "arguments": arguments_in(arguments)}
        call = {"id": id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        result = content_in(item.get("output"), f"{where}.output")
        return {"role": "tool", "tool_call_id": _word(item, "call_id", where), "content": result}
    known = "message, reasoning, function_call or function_call_output"
    raise BadField(f"{where}.type", f"must be {known}, not {str(kind)[:40]!r}")


def _thoughts(item: Mapping[str, Any], where: str) -> str:
    """What the model thought before the next item: in full, or else its summary."""
    whole, summary = (
        "" if item.get(name) is None else str(text_of(content_in(item[name], f"{where}.{name}")))
        for name in THOUGHTS
    )
    return whole or summary


def _named(name: str) -> NamedTool:
    return NamedTool(function=NamedFunction(name=name))


def _word(item: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(found := item.get(name), str):
        raise BadField(f"{where}.{name}", "must be a text")
    return found
