"""What may stand in an OpenAI request, and what does it mean to the model?

Every field that clients send is here. A field that asks for something that is not done is refused
by name; the few that are accepted without effect describe the request, not its answer. The fields
beyond OpenAI's own are those that vLLM's users send as `extra_body`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.values.buffer import Buffer

Fields = TypeVar("Fields", bound=msgspec.Struct)

#: Each is a request of its own to the model.
MAX_PROMPTS: Final = 1024
#: Longest name of a field, in characters, that is compared with those that are known.
MAX_NAME_CHARS: Final = 64
#: What 64 bits hold: a larger number could not even be carried to the model.
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
#: How many alternatives' log probabilities may be asked for.
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=20)]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    #: Padding against guesses by the sizes of events: there is none here.
    include_obfuscation: bool = False


class JsonSchema(msgspec.Struct, kw_only=True):
    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


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
        given = {FORMS.get(n, n): v for n, v in values.items() if v not in (None, False)}
        if len(given) != 1:
            raise BadField(where, f"give exactly one of {', '.join(self.__struct_fields__)}")
        if "json_schema" in given:
            return {"json_schema": _schema(given["json_schema"], f"{where}.json")}
        return given


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that chat and completions share. None means "not given"."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    # Beyond OpenAI
    top_k: Whole | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Whole | None = None
    stop_token_ids: list[Whole] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    #: 1 runs first.
    priority: Whole | None = None
    #: What the answer must look like, as vLLM names it: now, and before.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    # Accepted: they say nothing about the answer.
    user: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    store: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    safety_identifier: msgspec.Raw = msgspec.Raw()
    prompt_cache_key: msgspec.Raw = msgspec.Raw()
    prompt_cache_retention: msgspec.Raw = msgspec.Raw()
    prediction: msgspec.Raw = msgspec.Raw()

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> dict[str, Any]:
        """The fields of the engine's Sampling that are given."""
        wanted: dict[str, Any] = {
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k == -1 else self.top_k,  # vLLM's word for "all"
            "min_p": self.min_p,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "seed": self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "min_tokens": self.min_tokens,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "include_stop": self.include_stop_str_in_output,
            "logit_bias": self._logit_bias(),
        }
        forms = list(self.forms())
        if len(forms) > 1:
            names = " and ".join(field for field, _ in forms)
            raise BadField(forms[1][0], f"{names} ask for different answers; give one of them")
        wanted["constraint"] = forms[0][1] if forms else None
        return {name: value for name, value in wanted.items() if value is not None}

    def named(self, blamed: str) -> str:
        """Return the name that a field which the engine blames has in this request."""
        if blamed == "constraint":
            return next((field for field, _ in self.forms()), blamed)
        return {"include_stop": "include_stop_str_in_output"}.get(blamed, blamed)

    # What the answer must look like: the field that asks for it, and the engine's constraint.

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._formats()
        if self.structured_outputs is not None:
            yield "structured_outputs", self.structured_outputs.constraint()
        for field, name in FORMS.items():
            value = getattr(self, f"guided_{field}")
            if value is not None:
                value = _schema(value, f"guided_{field}") if field == "json" else value
                yield f"guided_{field}", {name: value}

    def _formats(self) -> Iterator[tuple[str, dict[str, Any]]]:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return
        if wanted.type == "json_object":
            yield "response_format", {"json_object": True}
        elif wanted.json_schema is None or wanted.json_schema.schema is None:
            raise BadField("response_format.json_schema.schema", "is missing")
        else:
            yield "response_format", {"json_schema": wanted.json_schema.schema}

    def _logit_bias(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        for token in self.logit_bias:
            if not (token.isascii() and token.isdecimal() and len(token) < 19):
                raise BadField("logit_bias", f"its keys must be token ids, not {token[:40]!r}")
        return {int(token): bias for token, bias in self.logit_bias.items()}


class FunctionSpec(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: str
    function: FunctionSpec | None = None


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A tool that must be called."""

    function: NamedFunction


class SomeTools(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Tools of which one may, or must, be called."""

    allowed_tools: SomeTools

    def names(self) -> set[str]:
        return {tool.function.name for tool in self.allowed_tools.tools}


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    #: A variable of the chat template; what it means is the model's affair.
    reasoning_effort: str | None = None
    # Beyond OpenAI, as vLLM names them. Variables of the chat template:
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def sampling(self) -> dict[str, Any]:
        sampling = super().sampling()
        most = self.max_completion_tokens if self.max_completion_tokens is not None else (
            self.max_tokens
        )  # fmt: skip
        if most is not None:
            sampling["max_tokens"] = most
        if self.top_logprobs is not None and not self.logprobs:
            raise BadField("top_logprobs", "it needs logprobs: true")
        if self.logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        if self.add_special_tokens:
            raise BadField("add_special_tokens", "the chat template has them already")
        return sampling

    def inputs(self) -> dict[str, Any]:
        """The model's inputs: conversation, wishes, tools, variables of the template."""
        if self.modalities not in (None, ["text"]):
            raise BadField("modalities", "only ['text'] is supported")
        inputs: dict[str, Any] = {
            "messages": conversation(self.messages),
            "parameters": self.sampling(),
        }
        if tools := self.callable_tools():
            inputs["tools"] = [msgspec.to_builtins(tool) for tool in tools]
        template = dict(self.chat_template_kwargs or {})
        for name in ("add_generation_prompt", "continue_final_message", "reasoning_effort"):
            value = getattr(self, name)
            if value is not None:
                template[name] = value
        if template:
            inputs["template"] = template
        return inputs

    def named(self, blamed: str) -> str:
        if blamed == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        names = {"prompt": "messages", "template": "chat_template_kwargs"}
        return names.get(blamed) or super().named(blamed)

    def callable_tools(self) -> list[Tool]:
        """Those that the model is told of."""
        tools, choice = self.tools or [], self.tool_choice
        for i, tool in enumerate(tools):
            if tool.type != "function" or tool.function is None:
                raise BadField(f"tools[{i}].type", "only functions are supported")
        if choice == "none":
            return []
        if isinstance(choice, AllowedTools):
            names = choice.names()
            return [t for t in tools if t.function is not None and t.function.name in names]
        return tools

    def calls(self) -> tuple[list[str], int | None]:
        """Return the functions that may be called, and the most calls; None: any number."""
        names = [tool.function.name for tool in self.callable_tools() if tool.function]
        return names, 1 if self.parallel_tool_calls is False else None

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from super().forms()
        yield from self._forced_calls()

    def _forced_calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """A tool that must be called: the answer is the call and nothing else."""
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            choice = choice.allowed_tools.mode
        if choice in (None, "none", "auto"):
            return
        functions = [tool.function for tool in self.callable_tools() if tool.function]
        if isinstance(choice, NamedTool):
            functions = [f for f in functions if f.name == choice.function.name]
        if not functions:
            raise BadField("tool_choice", "asks for a tool that is not among the tools")
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    "arguments": function.parameters or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in functions
        ]
        schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
        yield "tool_choice", {"json_schema": schema}


class CompletionRequest(Request):
    """POST /v1/completions."""

    prompt: str | list[str | Whole | list[Whole]]
    max_tokens: Whole | None = None
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None

    def prompts(self) -> list[str | list[int]]:
        """One or several, each a text or tokens."""
        given: Any = self.prompt
        kinds = {str} if isinstance(given, str) else {type(part) for part in given}
        if len(kinds) > 1:
            raise BadField("prompt", "must hold texts, or tokens, or lists of tokens")
        prompts = [given] if isinstance(given, str) or kinds == {int} else list(given)
        if not prompts or not all(prompts):
            raise BadField("prompt", "is empty")
        if len(prompts) > MAX_PROMPTS:
            raise BadField("prompt", f"holds {len(prompts)} prompts; send at most {MAX_PROMPTS}")
        return prompts

    def sampling(self) -> dict[str, Any]:
        if self.suffix:
            raise BadField("suffix", "text after the gap is not supported")
        if self.best_of not in (None, self.n or 1):
            raise BadField("best_of", "only the value of n is supported")
        sampling = super().sampling()
        if self.add_special_tokens is False:
            sampling["add_special_tokens"] = False
        if self.max_tokens is not None:
            sampling["max_tokens"] = self.max_tokens
        if self.logprobs is not None:
            sampling["logprobs"] = self.logprobs
        if self.echo and not self.echoes():
            sampling["echo"] = True
        return sampling

    def echoes(self) -> list[str]:
        """The prompts, if that is all there is to an echo; else it is the model's to make: of
        tokens, with log probabilities, or without an answer."""
        texts = [prompt for prompt in self.prompts() if isinstance(prompt, str)]
        plain = texts and self.logprobs is None and self.max_tokens != 0
        return texts if self.echo and plain else []


class Conversion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request that needs a model's tokenizer only: its answer is not streamed."""

    model: str | None = None

    stream: ClassVar[None] = None
    n: ClassVar[None] = None
    priority: ClassVar[None] = None
    include_usage: ClassVar[bool] = False

    def inputs(self) -> dict[str, Any]:
        """The model's inputs."""
        raise NotImplementedError

    def named(self, blamed: str) -> str:
        """Return the name that a field which the model blames has in this request."""
        raise NotImplementedError


class TokenizeRequest(Conversion):
    """POST /tokenize, as vLLM has it: of a text, or of a conversation."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: Literal[False] | None = None

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of a chat or of a prompt; the answer is its tokens."""
        if (self.prompt is None) == (self.messages is None):
            raise BadField("prompt", "give either prompt or messages")
        if self.messages is None:
            special = self.add_special_tokens is not False
            parameters = {} if special else {"add_special_tokens": False}
            return {"task": "tokenize", "prompt": self.prompt, "parameters": parameters}
        chat = ChatRequest(
            model="",
            messages=self.messages,
            tools=self.tools,
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            add_special_tokens=self.add_special_tokens,
        )
        return {"task": "tokenize", **chat.inputs()}

    def named(self, blamed: str) -> str:
        names = {"prompt": "messages", "template": "chat_template_kwargs"}
        return blamed if self.messages is None else names.get(blamed, blamed)


class DetokenizeRequest(Conversion):
    """POST /detokenize, as vLLM has it."""

    tokens: list[Whole]

    def inputs(self) -> dict[str, Any]:
        return {"task": "detokenize", "token_ids": self.tokens}

    def named(self, blamed: str) -> str:
        return {"prompt": "tokens"}.get(blamed, blamed)


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
    user: msgspec.Raw = msgspec.Raw()

    def texts(self) -> list[str]:
        texts: Any = [self.input] if isinstance(self.input, str) else self.input
        if not texts or not all(isinstance(text, str) for text in texts):
            raise BadField("input", "must be a text or a list of texts; tokens are not supported")
        return list(texts)


def decoded(body: Buffer, kind: type[Fields]) -> Fields:
    """A request's body; BadField names what is wrong in it."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            if not str(error).startswith("Object contains unknown field"):
                raise
            return msgspec.json.decode(_without_nulls(body), type=kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), kind) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadField(None, f"the body is not JSON: {error}") from None


def _without_nulls(body: Buffer) -> bytes:
    """A request in which nulls are left out: "not given", also of a field that is not known."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({name: v for name, v in fields.items() if bytes(v) != b"null"})


def _schema(given: Any, where: str) -> dict[str, Any]:
    """A JSON schema, which vLLM takes as text, too."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except msgspec.DecodeError:
            raise BadField(where, "is not JSON") from None
    if not isinstance(given, dict):
        raise BadField(where, "must be a JSON schema, an object")
    return given


#: What OpenAI had before.
REPLACED: Final = {"functions": "tools", "function_call": "tool_choice"}


def _named(problem: str, kind: type[msgspec.Struct]) -> BadField:
    """msgspec's words with the field's name in front, and for an unknown one what may be meant."""
    text, _, place = problem.partition(" - at `$")
    field = place.strip("`").lstrip(".")
    if text.startswith("Object contains unknown field"):
        name = text.split("`")[1]
        path = f"{field}.{name}" if field else name
        near = kind.__struct_fields__ if len(name) <= MAX_NAME_CHARS else ()
        close = difflib.get_close_matches(name, near, n=1, cutoff=0.75)
        hint = f"; did you mean '{close[0]}'?" if close and not field else ""
        if name in REPLACED:
            hint = f"; send {REPLACED[name]} instead"
        return BadField(path, f"is not a field that is known here{hint}")
    if text.startswith("Object missing required field"):
        name = text.split("`")[1]
        return BadField(f"{field}.{name}" if field else name, "is missing")
    return BadField(field or None, text[0].lower() + text[1:].replace("`", ""))


def conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them: text, and arguments of calls as objects."""
    if not messages:
        raise BadField("messages", "must hold at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise BadField(f"{where}.role", f"must be one of {', '.join(ROLES)}, not {role!r}")
    made = {name: value for name, value in message.items() if value is not None}
    made["role"] = "system" if role == "developer" else role
    if "content" in made:
        made["content"] = _text(made["content"], f"{where}.content")
    elif not (role == "assistant" and made.get("tool_calls")):
        raise BadField(f"{where}.content", "is missing")
    else:
        made["content"] = ""
    if "tool_calls" in made:
        if not isinstance(made["tool_calls"], list):
            raise BadField(f"{where}.tool_calls", "must be a list of calls")
        made["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(made["tool_calls"])
        ]
    return made


def _text(content: Any, where: str) -> str:
    """A text, or parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(where, "must be a text or a list of parts")
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get({"refusal": "refusal"}.get(str(kind), "text")) if kind else None
        if kind not in ("text", "refusal"):
            raise BadField(
                f"{where}[{i}]", f"only parts of type 'text' are supported, not {kind!r}"
            )
        if not isinstance(text, str):
            raise BadField(f"{where}[{i}].{kind}", "must be a text")
        texts.append(text)
    return "".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadField(where, "must have a function with a name and arguments")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except msgspec.DecodeError:
            raise BadField(f"{where}.function.arguments", "is not JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}
