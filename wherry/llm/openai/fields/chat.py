"""What may stand in a request to /v1/chat/completions, and which inputs has the model then?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

from wherry.llm.engine.chat_form import text_of
from wherry.llm.engine.schemas import loosened
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.chat_messages import conversation
from wherry.llm.openai.fields.generating import Request
from wherry.llm.openai.fields.kinds import Alternatives, Whole
from wherry.llm.openai.fields.not_done import OF_CHATS, NotDone
from wherry.llm.openai.fields.tools import (
    AllowedTools,
    FunctionSpec,
    NamedTool,
    Tools,
    function_of,
)
from wherry.llm.openai.tool_calls import AllowedCalls

#: Fields that are variables of the chat template by the same name.
VARIABLES: Final = (
    "add_generation_prompt", "continue_final_message", "reasoning_effort", "chat_template",
    "documents",
)  # fmt: skip


#: Calls that `required` may have: small models go on with a list without end.
MOST_CALLS: Final = 32


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_CHATS

    messages: list[dict[str, Any]]
    #: If neither is given: as many as the context has room for.
    max_tokens: Whole | None = None
    #: Wins over `max_tokens`.
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    #: Only `["text"]`.
    modalities: list[str] | None = None
    #: A variable of the chat template; what it means is the model's affair.
    reasoning_effort: str | None = None
    #: Whether the answer has the model's thoughts.
    include_reasoning: bool | None = None
    # Beyond OpenAI, as vLLM names them.
    #: Variables of the chat template, such as `enable_thinking`.
    chat_template_kwargs: dict[str, Any] | None = None
    #: True: what the checkpoint puts before a text, before the template's, too.
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    #: The model goes on with the last message.
    continue_final_message: bool | None = None
    #: In place of the checkpoint's, where the model takes one from its callers.
    chat_template: str | None = None
    #: Texts that a template may quote.
    documents: list[dict[str, Any]] | None = None

    def sampling(self) -> dict[str, Any]:
        sampling = super().sampling()
        most = self.max_completion_tokens if self.max_completion_tokens is not None else (
            self.max_tokens
        )  # fmt: skip
        if most is not None:
            sampling["max_tokens"] = most
        if self.top_logprobs and not self.logprobs:
            raise BadField("top_logprobs", "it needs logprobs: true")
        if self.logprob_token_ids is not None and not self.logprobs:
            raise BadField("logprob_token_ids", "it needs logprobs: true")
        if self.logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        if self.add_special_tokens:  # the chat template has them, most often
            sampling["add_special_tokens"] = True
        return sampling

    def inputs(self) -> dict[str, Any]:
        """The model's inputs: conversation, wishes, tools, variables of the template."""
        inputs: dict[str, Any] = {"messages": conversation(self.messages)}
        if self.modalities not in (None, ["text"]):
            raise BadField("modalities", "only ['text'] is supported")
        inputs["parameters"] = self.sampling()
        if tools := self.callable_tools():
            inputs["tools"] = tools
        if template := self._template():
            inputs["template"] = template
        return inputs

    def shows_thoughts(self) -> bool:
        return self.include_reasoning is not False

    def echoed(self) -> str:
        """The text that stands in front of the answer: that of the message which goes on."""
        last = conversation(self.messages[-1:])[-1] if self.echo else {}
        return str(text_of(last["content"])) if last.get("role") == "assistant" else ""

    def _template(self) -> dict[str, Any]:
        """Variables of the chat template."""
        if self.continue_final_message and self.add_generation_prompt:
            problem = "the last message goes on, or another begins: leave one of the two out"
            raise BadField("continue_final_message", problem)
        template = dict(self.chat_template_kwargs or {})
        if "chat_template" in template:
            raise BadField("chat_template_kwargs.chat_template", "send it as chat_template")
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
        names = {"prompt": "messages", "template": "chat_template_kwargs"}
        return names.get(blamed) or super().named(blamed)

    def callable_tools(self) -> list[dict[str, Any]]:
        """Those that the model is told of, as the client sent them."""
        return [tool for tool, _ in self._offered()]

    def _offered(self) -> list[tuple[dict[str, Any], FunctionSpec]]:
        """The tools that may be called, each with its function."""
        tools = [
            (tool, function_of(tool, f"tools[{i}]")) for i, tool in enumerate(self.tools or ())
        ]
        choice = self.tool_choice
        if choice == "none":
            return []
        if isinstance(choice, AllowedTools):
            names = choice.names()
            if unknown := names - {function.name for _, function in tools}:
                listed = ", ".join(sorted(unknown))[:80]
                raise BadField(
                    "tool_choice", f"asks for tools that are not among the tools: {listed}"
                )
            return [(tool, function) for tool, function in tools if function.name in names]
        return tools

    def calls(self) -> AllowedCalls:
        """What the answer may call."""
        functions = {function.name: function.parameters or {} for _, function in self._offered()}
        most = 1 if self.parallel_tool_calls is False else None
        return AllowedCalls(functions, most, forced=any(self._forced_calls()))

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        forced = list(self._forced_calls())
        # The format is that of a text, and an answer that must call has none.
        yield from (f for f in super().forms() if not (forced and f[0] == "response_format"))
        yield from forced

    def not_followed(self, parameters: str = "function.parameters") -> list[str]:
        """What no grammar can follow in the schemas that calls must have: its places. `parameters`
        is where the client's tools have theirs."""
        forced = {function.name for function in self._forced()}
        schemas = [
            (f"tools[{i}].{parameters}", function.parameters or {})
            for i, (_, function) in enumerate(self._offered())
            if function.strict or function.name in forced
        ]
        return [f"{where}.{one}" for where, schema in schemas for one in loosened(schema)[1]]

    def _forced(self) -> list[FunctionSpec]:
        """The functions of which one must be called."""
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            choice = choice.allowed_tools.mode
        if choice in (None, "none", "auto"):
            return []
        functions = [function for _, function in self._offered()]
        if isinstance(choice, NamedTool):
            functions = [f for f in functions if f.name == choice.function.name]
        if not functions:
            raise BadField("tool_choice", "asks for a tool that is not among the tools")
        return functions

    def _forced_calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """A tool that must be called: the answer is the call and nothing else, or, if several may
        be called, a list of calls."""
        functions = self._forced()
        if not functions:
            return
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    "arguments": _resource(f"urn:tool:{number}", function.parameters),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, function in enumerate(functions)
        ]
        schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if not isinstance(self.tool_choice, NamedTool) and self.parallel_tool_calls is not False:
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": MOST_CALLS}
        yield "tool_choice", {"json_schema": schema}


def _resource(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """The schema of a call's arguments as a part of another one: references in it such as
    "#/$defs/Address" go on meaning its own definitions."""
    return {"$id": name, **loosened(parameters)[0]} if parameters else {"type": "object"}
