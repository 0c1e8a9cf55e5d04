"""Which fields do chats and completions share, and how does the engine call them?

The fields beyond OpenAI's own are those that vLLM's users send as `extra_body`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from wherry.core.api import value_bytes
from wherry.llm.engine.constraint import MOST_CHARACTERS
from wherry.llm.engine.sampling import (
    MOST_LOGPROBS,
    MOST_STOPS,
    MOST_TOKENS_ALLOWED,
    MOST_TOKENS_NAMED,
)
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import Alternatives, NotDone, TokenId, Whole, json_in

#: The model's inputs for one row.
Inputs = dict[str, Any]
#: A field that constrains the form of the answer, and the engine's constraint for it.
AnswerForm = tuple[str, dict[str, Any]]

#: The most bytes that the prompts of a request may share, counted once for each prompt: each is a
#: request of its own to the model, which may run in another process.
MOST_SHARED_BYTES: Final = 16 * 2**20
#: Tokens of an answer that the request does not bound.
LEAST_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """What an answer includes beside the text and its end."""

    #: The usage at the end of a stream.
    usage: bool = False
    token_ids: bool = False
    thoughts: bool = True


@dataclass(slots=True)
class ModelCall:
    """A request's inputs for a model."""

    #: The model's inputs for each prompt.
    inputs: Inputs
    #: The inputs that are each prompt's own.
    own: Sequence[Inputs] = ({},)
    #: Bytes of the inputs of each prompt, the shared ones among them; None: not measured.
    nbytes: Sequence[int] | None = None
    #: The places, in the schemas of tools, of what no grammar can follow.
    not_followed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, own: Sequence[Inputs], inputs: Inputs, field: str) -> ModelCall:
        """Several prompts, measured. BadField, for their field, if there are too many of them for
        the bytes that they share."""
        made = cls(inputs, own)
        once = made.measure()
        if len(own) > 1 and len(own) * once > MOST_SHARED_BYTES:
            most = MOST_SHARED_BYTES // once
            raise BadField(
                field,
                f"holds {len(own)}, and the fields that hold for each of them have {once} bytes;"
                f" send at most {most or 1} at a time beside these",
            )
        parameters = inputs.get("parameters") or {}
        if len(own) > 1 and (logprobs := _logprobs(own, parameters)) > MOST_LOGPROBS:
            raise BadField(
                field,
                f"holds {len(own)}, with up to {logprobs} log probabilities together; send at most"
                f" {MOST_LOGPROBS * len(own) // logprobs or 1} at a time",
            )
        return made

    def measure(self) -> int:
        """Count the bytes of each prompt, which takes as long as reading them did; return
        those of the shared ones."""
        once = value_bytes(self.inputs)
        self.nbytes = [once + value_bytes(each) for each in self.own]
        return once


def _logprobs(own: Sequence[Inputs], parameters: Mapping[str, Any]) -> int:
    """The most log probabilities that the request can get: a token is at least a character."""
    answers, most = parameters.get("n") or 1, parameters.get("logprobs")
    each = 0 if most is None else answers * (1 + most)
    of_a_token = each if parameters.get("echo") else 0
    if (ranked := parameters.get("prompt_logprobs")) is not None:
        of_a_token += 1 + ranked
    tokens = sum(len(one.get("prompt") or one.get("token_ids") or "") for one in own)
    return of_a_token * tokens + each * (parameters.get("max_tokens") or LEAST_TOKENS) * len(own)


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


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form that the answer must have, in vLLM's field."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def constraint(self) -> dict[str, Any]:
        where = "structured_outputs"
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        value = {name: value for name, value in values.items() if value not in (None, False)}
        if len(value) != 1:
            raise BadField(where, f"give exactly one of {', '.join(self.__struct_fields__)}")
        if "json" in value:  # the engine has another name for it
            return {"json_schema": schema_of(value["json"], f"{where}.json")}
        return value


def schema_of(value: Any, where: str) -> dict[str, Any]:
    """A JSON schema, which vLLM takes as text, too."""
    if isinstance(value, str):
        text, value = value, json_in(value, where)
        if len(text) > MOST_CHARACTERS:  # the engine would refuse it later
            problem = f"it has {len(text)} characters; at most {MOST_CHARACTERS} are read"
            raise BadField(where, problem)
    if not isinstance(value, dict):
        raise BadField(where, "must be a JSON schema, an object")
    return value


#: Fields that the engine calls by the same name.
SAME: Final = (
    "n", "temperature", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "allowed_token_ids",
    "ignore_eos", "skip_special_tokens", "prompt_logprobs", "truncation_side", "cache_salt",
)  # fmt: skip
#: Fields that the engine calls by another name.
RENAMED: Final = {
    "include_stop_str_in_output": "include_stop",
    "return_token_ids": "report_prompt_tokens",
}
#: As many as the engine takes. A longer list is refused while it is read: passing it on, and
#: describing it, would cost others more time than it took to send.
NamedTokens = Annotated[list[Whole], msgspec.Meta(max_length=MOST_TOKENS_NAMED)]
#: vLLM's value for "as many as the model takes".
ALL: Final = -1


#: Of chats and completions.
OF_GENERATIONS: Final = {
    "use_beam_search": NotDone((False,)),
    "length_penalty": NotDone((1.0,)),
    "early_stopping": NotDone((False,)),
    "logits_processors": NotDone(([],)),
    "kv_transfer_params": NotDone(({},)),
    "vllm_xargs": NotDone(({},)),
    "prompt_embeds": NotDone(([], "")),
    "guided_whitespace_pattern": NotDone(),
    **{
        f"guided_{form}": NotDone(use=f"structured_outputs.{form}")
        for form in ("json", "regex", "choice", "grammar")
    },
    "logprob_token_ids": NotDone(([],), use="top_logprobs"),
    "return_tokens_as_token_ids": NotDone((False,), use="return_token_ids"),
    "bad_words": NotDone(([],), use="logit_bias"),
}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    #: Without effect, as GuideLLM sends it always: the usage is at the end.
    continuous_usage_stats: bool | None = None
    #: Padding that hides the sizes of events: never sent here.
    include_obfuscation: bool | None = None


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that chat and completions share. None means "absent"."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_GENERATIONS

    #: May be left out if only one model can answer.
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    #: Answers, at most 128; the prompt is computed once.
    n: Whole | None = None
    #: 0: the most probable token each time.
    temperature: float | None = None
    top_p: float | None = None
    #: Strings that end the answer and are not part of it.
    stop: str | Annotated[list[str], msgspec.Meta(max_length=MOST_STOPS)] | None = None
    #: The same seed gives the same text, whatever else the server is doing.
    seed: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    #: From -1000 to 1000, by the token's number.
    logit_bias: (
        Annotated[dict[TokenId, float], msgspec.Meta(max_length=MOST_TOKENS_NAMED)] | None
    ) = None

    # Beyond OpenAI
    #: 0 or -1: all.
    top_k: Whole | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    #: The answer does not end before, unless its form allows nothing more.
    min_tokens: Whole | None = None
    stop_token_ids: NamedTokens | None = None
    #: The only tokens that may be chosen. Ignored where it leaves none.
    allowed_token_ids: (
        Annotated[list[Whole], msgspec.Meta(min_length=1, max_length=MOST_TOKENS_ALLOWED)] | None
    ) = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    #: Without effect: the tokenizers in use add none.
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    #: Tokens of the prompt to keep; -1: as many as leave room for the answer.
    truncate_prompt_tokens: Whole | None = None
    #: Where the others are cut off; default: left.
    truncation_side: Literal["left", "right"] | None = None
    #: Alternatives for each token of the prompt; not in a stream.
    prompt_logprobs: Alternatives | None = None
    return_token_ids: bool | None = None
    #: Cached prefixes are shared only with requests of the same salt.
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    #: Maximum tokens of reasoning; -1: any number.
    thinking_token_budget: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] | None = None
    #: 1 runs first.
    priority: Whole | None = None
    #: Structured output in OpenAI's format.
    response_format: ResponseFormat | None = None
    #: Structured output in vLLM's format.
    structured_outputs: StructuredOutputs | None = None

    # Accepted without effect on the answer.
    user: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    store: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    safety_identifier: msgspec.Raw = msgspec.Raw()
    prompt_cache_key: msgspec.Raw = msgspec.Raw()
    prompt_cache_retention: msgspec.Raw = msgspec.Raw()
    prompt_cache_options: msgspec.Raw = msgspec.Raw()
    prediction: msgspec.Raw = msgspec.Raw()

    def shown(self, *, thoughts: bool = True) -> AnswerParts:
        """What the answer includes."""
        options = self.stream_options or StreamOptions()
        return AnswerParts(
            usage=bool(options.include_usage),
            token_ids=bool(self.return_token_ids),
            thoughts=thoughts,
        )

    def parameters(self, call: AnswerForm | None = None) -> dict[str, Any]:
        self._check_stream()
        parameters: dict[str, Any] = {name: getattr(self, name) for name in SAME}
        parameters |= {ours: getattr(self, name) for name, ours in RENAMED.items()}
        parameters |= {
            "top_k": None if self.top_k == ALL else self.top_k,
            "thinking_budget": None if (most := self.thinking_token_budget) == ALL else most,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "truncate_prompt": 0 if self.truncate_prompt_tokens == ALL else self._kept(),
        }
        if self.top_p == 0:  # the likeliest token alone, as others read it
            parameters |= {"top_p": None, "temperature": 0.0}
        forms = list(self.forms(call))
        if len(forms) > 1:
            names = " and ".join(field for field, _ in forms)
            raise BadField(forms[1][0], f"{names} ask for different answers; give one of them")
        parameters["constraint"] = forms[0][1] if forms else None
        return {name: value for name, value in parameters.items() if value is not None}

    def named(self, blamed: str) -> str:
        """Return this request's name of a field that the engine found wrong."""
        if blamed == "constraint":
            return next((field for field, _ in self.forms()), blamed)
        names = {ours: name for name, ours in RENAMED.items()}
        names["thinking_budget"] = "thinking_token_budget"
        return {"adapter": "model", "truncate_prompt": "truncate_prompt_tokens", **names}.get(
            blamed, blamed
        )

    def forms(self, call: AnswerForm | None = None) -> Iterator[AnswerForm]:
        """The forms that the answer must have: a call's, or those of the fields that constrain a
        text."""
        formed = self.response_format if call is None else None
        if formed is not None and (constraint := formed.constraint()):
            yield "response_format", constraint
        if self.structured_outputs is not None:
            yield "structured_outputs", self.structured_outputs.constraint()
        if call is not None:
            yield call

    def _kept(self) -> int | None:
        most = self.truncate_prompt_tokens
        if most is not None and most < 1:
            raise BadField("truncate_prompt_tokens", "must be at least 1, or -1 for as many as fit")
        return most

    def _check_stream(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise BadField("stream_options", "only a stream has them: send stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise BadField("prompt_logprobs", "a stream does not have them; send stream: false")
