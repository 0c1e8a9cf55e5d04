"""What may stand in a request to /v1/chat/completions, and which inputs has the model then?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from wherry.llm.engine.chat_form import text_of
from wherry.llm.engine.constraint import loosened
from wherry.llm.formats.calls import Functions
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation_request import (
    OF_GENERATIONS,
    AnswerForm,
    AnswerParts,
    ModelCall,
    Request,
)
from wherry.llm.openai.reading import Alternatives, NotDone, Whole, json_in, named

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
#: The parts that are text, in any of OpenAI's forms, and the member that holds it.
PARTS: Final = dict.fromkeys(
    ("text", "input_text", "output_text", "reasoning_text", "summary_text"), "text"
) | {"refusal": "refusal"}
#: The roles whose messages may have no content: it is null in an answer of thoughts or calls only,
#: and may be null in a function's result.
SILENT: Final = ("assistant", "tool", "function")
#: Longest role, in characters.
MOST_ROLE_CHARS: Final = 64


def conversation(
    messages: Sequence[Mapping[str, Any]], where: str = "messages"
) -> list[dict[str, Any]]:
    """Messages for a chat template: as they were sent, but with the arguments of calls as objects,
    and parts of one type. `where` is the field that has them."""
    if not messages:
        raise BadField(where, "must hold at least one message")
    return [_message(message, f"{where}[{i}]") for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= MOST_ROLE_CHARS:
        problem = f"must be one of {', '.join(ROLES)}, or another that the chat template knows"
        raise BadField(f"{where}.role", problem)
    made = {**message, "role": "system" if role == "developer" else role}
    if made.get("content") is not None:
        made["content"] = content_in(made["content"], f"{where}.content")
    elif role not in SILENT:
        raise BadField(f"{where}.content", "is missing")
    calls = made.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise BadField(f"{where}.tool_calls", "must be a list of calls")
        made["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    else:  # null and an empty list are not calls; many templates test only whether it is there
        made.pop("tool_calls", None)
    return made


def content_in(content: Any, where: str) -> str | list[dict[str, Any]]:
    """A text, or parts that are texts, as chat templates have them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(where, "must be a text or a list of parts")
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in PARTS:
        problem = f"only parts of type 'text' are supported, not {str(kind)[:40]!r}"
        raise BadField(where, problem)
    text = part.get(PARTS[kind])
    if not isinstance(text, str):
        raise BadField(f"{where}.{PARTS[kind]}", "must be a text")
    return part if kind == "text" else {"type": "text", "text": text}


def in_texts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation whose contents are texts, for a model that renders it without a template.
    Messages that are so already are the same."""
    return [
        message
        if isinstance(content := message.get("content"), str)
        else {**message, "content": text_of(content)}
        for message in messages
    ]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadField(where, "must have a function with a name and arguments")
    return {**call, "function": {**function, "arguments": arguments_in(function.get("arguments"))}}


def arguments_in(arguments: Any) -> Any:
    """The arguments of a call as an object. Text that is not an object, or was cut off, stays text:
    a client must be able to send back an answer as it received it."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        found = json_in(arguments.strip() or "{}", "")
    except BadField:
        return arguments
    return found if isinstance(found, dict) else {} if found is None else arguments


#: A function without a name cannot be called.
FunctionName = Annotated[str, msgspec.Meta(min_length=1)]


class FunctionSpec(msgspec.Struct, kw_only=True):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """The members of a tool that are read here. The model gets the tool as the client sent it."""

    type: str
    function: FunctionSpec | None = None


#: The most functions of a request (OpenAI: 128): each goes into the prompt, and is read again for
#: each answer.
MOST_TOOLS: Final = 1024
Tools = Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MOST_TOOLS)]


def function_of(tool: Mapping[str, Any], where: str) -> FunctionSpec:
    """The function of a tool that stands at `where`. BadField."""
    try:
        read = msgspec.convert(tool, Tool)
    except msgspec.ValidationError as error:
        raise named(str(error), Tool, where) from None
    if read.type != "function":
        raise BadField(f"{where}.type", "only functions are supported")
    if read.function is None:
        raise BadField(f"{where}.function", "is missing")
    return read.function


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedTool(
    msgspec.Struct, kw_only=True, tag_field="type", tag="function", forbid_unknown_fields=True
):
    """A tool that must be called."""

    function: NamedFunction


class SomeTools(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(
    msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True
):
    """Tools of which one may or must be called."""

    allowed_tools: SomeTools


#: Fields that are variables of the chat template by the same name.
VARIABLES: Final = (
    "add_generation_prompt", "continue_final_message", "reasoning_effort", "documents",
)  # fmt: skip


#: The most calls with `required`: small models write a list without end.
MOST_CALLS: Final = 32


#: Of chats alone.
OF_CHATS: Final = {
    **OF_GENERATIONS,
    "audio": NotDone(),
    "modalities": NotDone((["text"],)),
    "echo": NotDone((False,)),
    "chat_template": NotDone(use="the checkpoint's chat_template.jinja"),
    "verbosity": NotDone(("medium",)),
    "web_search_options": NotDone(),
    "functions": NotDone(([],), use="tools"),
    "function_call": NotDone(("none",), use="tool_choice"),
}


@dataclass(frozen=True, slots=True)
class AllowedCalls:
    """The functions that a request allows its answers to call."""

    functions: Functions = field(default_factory=dict)
    #: The most calls of an answer; None: any number. Further ones are left out.
    most: int | None = None
    #: The answer is constrained to be a call: bare JSON, whatever the model's own form is.
    forced: bool = False


@dataclass(slots=True, kw_only=True)
class ChatCall(ModelCall):
    """A chat's inputs for a model, and what its answer may call."""

    calls: AllowedCalls
    shown: AnswerParts


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_CHATS

    messages: list[dict[str, Any]]
    #: Default for both: as many as fit the context.
    max_tokens: Whole | None = None
    #: Wins over `max_tokens`.
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    #: A variable of the chat template; its meaning depends on the model.
    reasoning_effort: str | None = None
    #: Whether the answer includes the model's reasoning.
    include_reasoning: bool | None = None
    # Beyond OpenAI, as vLLM names them.
    #: Variables of the chat template, such as `enable_thinking`.
    chat_template_kwargs: dict[str, Any] | None = None
    #: True: the tokens that the checkpoint puts before a text also precede the template's.
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    #: The model goes on with the last message.
    continue_final_message: bool | None = None
    #: Texts for the template.
    documents: list[dict[str, Any]] | None = None

    def call(self, parameters: str = "function.parameters") -> ChatCall:
        """The request as inputs for a model. `parameters` is the place of the schemas in the
        client's tools. BadField."""
        offered = self._offered()
        forced = self._forced([function for _, function in offered])
        functions = {function.name: function.parameters or {} for _, function in offered}
        most = 1 if self.parallel_tool_calls is False else None
        not_followed = _not_followed(offered, forced, parameters)
        inputs: dict[str, Any] = {"messages": conversation(self.messages)}
        inputs["parameters"] = self._sampling(self._form_of_call(forced))
        if offered:
            inputs["tools"] = [tool for tool, _ in offered]
        if template := self._template():
            inputs["template"] = template
        return ChatCall(
            inputs,
            not_followed=not_followed,
            calls=AllowedCalls(functions, most, forced=bool(forced)),
            shown=self.shown(thoughts=self.include_reasoning is not False),
        )

    def _sampling(self, call: AnswerForm | None) -> dict[str, Any]:
        sampling = self.parameters(call)
        for most in (self.max_tokens, self.max_completion_tokens):
            if most is not None:
                sampling["max_tokens"] = most
        if self.top_logprobs and not self.logprobs:
            raise BadField("top_logprobs", "it needs logprobs: true")
        if self.logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        if self.add_special_tokens:  # chat templates usually have them
            sampling["add_special_tokens"] = True
        return sampling

    def _template(self) -> dict[str, Any]:
        if self.continue_final_message and self.add_generation_prompt:
            problem = "the last message goes on, or another begins: leave one of the two out"
            raise BadField("continue_final_message", problem)
        template = dict(self.chat_template_kwargs or {})
        if self.continue_final_message:
            template["add_generation_prompt"] = False
        for name in VARIABLES:
            value = getattr(self, name)
            if value is not None:
                template[name] = value
        return template

    def named(self, blamed: str) -> str:
        if blamed == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        if blamed == "constraint" and self._forced([one for _, one in self._offered()]):
            return next((field for field, _ in self.forms(("tool_choice", {}))), blamed)
        names = {"prompt": "messages", "template": "chat_template_kwargs"}
        return names.get(blamed) or super().named(blamed)

    def _offered(self) -> list[tuple[dict[str, Any], FunctionSpec]]:
        tools = [
            (tool, function_of(tool, f"tools[{i}]")) for i, tool in enumerate(self.tools or ())
        ]
        choice = self.tool_choice
        if choice == "none":
            return []
        if isinstance(choice, AllowedTools):
            names = {tool.function.name for tool in choice.allowed_tools.tools}
            if unknown := names - {function.name for _, function in tools}:
                listed = ", ".join(sorted(unknown))[:80]
                raise BadField(
                    "tool_choice", f"asks for tools that are not among the tools: {listed}"
                )
            return [(tool, function) for tool, function in tools if function.name in names]
        return tools

    def _forced(self, functions: list[FunctionSpec]) -> list[FunctionSpec]:
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            choice = choice.allowed_tools.mode
        if choice in (None, "none", "auto"):
            return []
        if isinstance(choice, NamedTool):
            functions = [f for f in functions if f.name == choice.function.name]
        if not functions:
            raise BadField("tool_choice", "asks for a tool that is not among the tools")
        return functions

    def _form_of_call(self, functions: Sequence[FunctionSpec]) -> AnswerForm | None:
        """A tool that must be called: the answer is the call and nothing else, or, if several may
        be called, a list of calls."""
        if not functions:
            return None
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    # A resource: references in it go on meaning its own definitions.
                    "arguments": {
                        "$id": f"urn:tool:{number}",
                        **loosened(function.parameters or {})[0],
                        "type": "object",
                    },
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, function in enumerate(functions)
        ]
        schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if not isinstance(self.tool_choice, NamedTool) and self.parallel_tool_calls is not False:
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": MOST_CALLS}
        return "tool_choice", {"json_schema": schema}


def _not_followed(
    offered: Sequence[tuple[Mapping[str, Any], FunctionSpec]],
    forced: Sequence[FunctionSpec],
    parameters: str,
) -> list[str]:
    names = {function.name for function in forced}
    places = list[str]()
    for i, (_, function) in enumerate(offered):
        schema, where = function.parameters or {}, f"tools[{i}].{parameters}"
        types = schema.get("type") or "object"
        if "object" not in (types if isinstance(types, list) else [types]):
            raise BadField(where, "must be the schema of an object")
        if function.strict or function.name in names:
            places += [f"{where}.{place}" for place in loosened(schema)[1]]
    return places
