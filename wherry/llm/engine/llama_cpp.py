"""How does llama.cpp serve a GGUF file with the inputs and outputs of `LLM`?

llama.cpp's server (continuous batching over slots) runs in this process through the package
xllamacpp. A thread waits for each request, and `step` collects the results.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Unpack

from wherry.core.api import ConfigError, Device, ModelSettings, PromptTooLong, Step
from wherry.llm.engine.constraint import MOST_CHARACTERS, AnswerForm
from wherry.llm.engine.delta import AnswerPieces, Delta
from wherry.llm.engine.prompt import Prompt
from wherry.llm.engine.sampling import Sampling, bounded
from wherry.llm.engine.text_model import TextModel
from wherry.llm.formats.families import THOUGHT_FAMILIES

#: Seconds that a step waits for a token, which is also the longest delay of a new request's start.
WAIT: Final = 0.02
#: Nested parentheses of a grammar.
MOST_DEPTH: Final = 500
#: Beyond any vocabulary: llama.cpp itself refuses a prompt's tokens beyond its own.
MOST_TOKENS: Final = 1 << 31
#: The request's field by the words of llama.cpp's error, which names none.
MEANT: Final = {
    "parse grammar": "constraint",
    "invalid tokens": "prompt",
    "exceeds the available context": "prompt",
}
#: llama.cpp's names of our parameters.
NAMES: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "n": "n",
    "ignore_eos": "ignore_eos",
}


@dataclass(slots=True, eq=False)
class _LlamaRequest:
    alternatives: int | None
    answers: AnswerPieces
    came: SimpleQueue[dict[str, Any] | None] = field(default_factory=SimpleQueue)
    #: Whether it was cancelled: it ends with the next token.
    left: bool = False
    thread: threading.Thread | None = None
    #: The last pieces of answers, held back until the usage arrives, which comes last.
    ends: list[Delta] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    #: Of a chat: its answers' texts, by index, and how they are to be read, until that is sent.
    texts: dict[int, OneText] = field(default_factory=dict)
    style: Mapping[str, Any] | None = None


class LlamaCpp(TextModel):
    """A GGUF file served by llama.cpp in this process. Needs `wherry[llama-cpp]`.

        wherry.Server(LlamaCpp("SmolLM2-135M-Instruct.Q4_1.gguf", name="chat"))

    Inputs and outputs are those of `LLM`. `slots` requests run at a time, each with a context of
    `context_tokens`. The answer has `token_ids` only if the request sets `logprobs`.
    llama.cpp reads calls of tools and thoughts itself: they are in the text as Hermes writes them.
    Grammars are GBNF, as llama.cpp reads them. Refused: what `unsupported` lists, regular
    expressions, and skip_special_tokens and add_special_tokens off.
    """

    engine_name = "llama.cpp"
    unsupported = (
        "min_tokens", "stop_token_ids", "include_stop", "echo", "allowed_token_ids",
        "report_prompt_tokens", "adapter", "prompt_logprobs", "thinking_budget", "truncate_prompt",
    )  # fmt: skip
    tokenizes = False
    defaults: Mapping[str, Any] = {}
    vocabulary = MOST_TOKENS

    def __init__(
        self,
        file: str | Path,
        *,
        context_tokens: int = 4096,
        slots: int = 8,
        threads: int | None = None,
        **settings: Unpack[ModelSettings],
    ) -> None:
        super().__init__(file, slots, settings)
        self.file = Path(file)
        if slots < 1 or context_tokens < 1:
            raise ConfigError(f"llama-cpp {file}: slots and context_tokens must be at least 1")
        self._slots, self.context_tokens, self._threads = slots, context_tokens, threads

    def load(self, device: Device) -> None:
        try:
            import xllamacpp
        except ImportError as error:
            raise ConfigError("llama.cpp: pip install 'wherry[llama-cpp]'") from error
        if not self.file.is_file():
            raise ConfigError(f"llama-cpp: {self.file.name}: no such file")
        requested = xllamacpp.CommonParams()
        requested.model.path = str(self.file)
        requested.n_parallel = self._slots
        requested.n_ctx = self._slots * self.context_tokens
        requested.verbosity = 1
        requested.use_jinja = True
        if str(device) == "cpu":
            requested.n_gpu_layers = 0
        if self._threads is not None:
            requested.cpuparams.n_threads = requested.cpuparams_batch.n_threads = self._threads
        self._server: Any = xllamacpp.Server(requested)
        #: Requests that llama.cpp runs or is about to run, including cancelled ones still in
        #: prefill.
        self._active: set[_LlamaRequest] = set()
        self._news = threading.Event()

    def unload(self) -> None:
        for request in (requests := list(self.__dict__.get("_active", ()))):
            request.left = True
        for request in requests:
            if request.thread is not None:
                request.thread.join()
        self.__dict__.pop("_server", None)

    def _begin(
        self, unread: Prompt, sampling: Sampling, *, stream: bool, only_count: bool
    ) -> _LlamaRequest:
        unread.checked(self._name)
        messages, template = unread.messages, unread.template or {}
        if "chat_template" in template:
            problem = "chat_template is not supported by llama.cpp's adapter"
            raise self._refused(problem, "chat_template")
        self._check(unread.prompt, messages)
        sampling = bounded(self._name, sampling)
        body = self._body(sampling, chat=bool(messages))
        handle = self._server.handle_completions
        if messages:
            handle = self._server.handle_chat_completions
            body |= {"messages": _with_text_arguments(messages), "chat_template_kwargs": template}
            if unread.tools:
                body["tools"] = list(unread.tools)
        else:
            body["prompt"] = unread.prompt or list(unread.token_ids)
        request = _LlamaRequest(sampling.logprobs, AnswerPieces(stream))
        if messages and sampling.constraint is None:
            request.style = STYLE
        request.thread = threading.Thread(
            target=self._wait,
            args=(handle, body, request),
            name=f"{self._name} request",
        )
        self._active.add(request)
        request.thread.start()
        return request

    def step(self, active: list[_LlamaRequest]) -> list[Step[Delta]]:
        self._news.wait(WAIT)
        self._news.clear()
        return [self._step(request) for request in active]

    def stop(self, state: _LlamaRequest) -> None:
        state.left = True  # do not wait for its thread: it may be in a long prefill

    def gauges(self) -> Mapping[str, float]:
        return {"running": float(len(self._active))}

    # A request's own thread

    def _wait(self, handle: Any, body: dict[str, Any], request: _LlamaRequest) -> None:
        def came(chunk: dict[str, Any]) -> bool:
            request.came.put(chunk)
            self._news.set()
            return request.left or "error" in chunk

        try:
            handle(body, came)
        except Exception as error:  # noqa: BLE001 - reported by step()
            request.came.put({"error": {"code": 500, "message": str(error)}})
        request.came.put(None)
        self._active.discard(request)
        self._news.set()

    # The model's thread

    def _step(self, request: _LlamaRequest) -> Step[Delta]:
        deltas: list[Delta] = []
        with suppress(Empty):
            while (chunk := request.came.get_nowait()) is not None:
                if "error" in chunk:
                    return Step(error=self._failure(chunk["error"]))
                deltas += self._deltas(request, chunk)
            return Step([*deltas, *self._ends(request)], done=True)
        return Step(deltas)

    def _deltas(self, request: _LlamaRequest, chunk: Mapping[str, Any]) -> list[Delta]:
        if usage := chunk.get("usage"):
            cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            counts = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
            request.usage = {**counts, "cached_tokens": cached}
        made: list[Delta] = []
        for choice in chunk.get("choices", ()):
            text = choice.get("text")
            details: dict[str, Any] = {}
            if text is None:  # of a chat
                if request.style is not None:
                    details, request.style = {"style": request.style}, None
                written = request.texts.setdefault(choice["index"], OneText())
                text = written.feed(choice.get("delta", {}))
                text += written.end() if choice.get("finish_reason") else ""
            logprobs = _logprobs(choice.get("logprobs"), request.alternatives)
            ids = [token["id"] for token in logprobs]
            if request.alternatives is None:
                logprobs = []
            reason = choice.get("finish_reason") or ""
            if not (text or logprobs or details or reason):
                continue
            reason = "stop" if reason not in ("", "length") else reason
            delta = Delta(choice["index"], text, ids, reason, logprobs, {}, details)
            (request.ends if reason else made).extend(request.answers.add(delta))
        return made

    def _ends(self, request: _LlamaRequest) -> list[Delta]:
        if request.ends:
            request.ends[-1].usage = request.usage
        return request.ends

    # Words

    def _check(self, prompt: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Refuse parts other than text, and invalid Unicode: llama.cpp would answer with 500."""
        field = "messages" if messages else "prompt"
        for content in (message.get("content") for message in messages):
            parts = content if isinstance(content, list) else ()
            if other := [one for one in parts if one.get("type") != "text"]:
                problem = f"messages: {str(other[0].get('type'))[:40]!r}: the model takes text only"
                raise self._refused(problem, field)
        try:
            json.dumps([prompt, *messages], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # a lone surrogate
            raise self._refused(f"{field}: it is not text: {error.reason}", field) from None

    def _body(self, requested: Sampling, *, chat: bool) -> dict[str, Any]:
        for name in ("skip_special_tokens", "add_special_tokens"):
            if getattr(requested, name) is False:  # llama.cpp sets the first for the whole server
                problem = f"{name}: false is not supported by llama.cpp's adapter"
                raise self._refused(problem, name)
        body: dict[str, Any] = {other: getattr(requested, name) for name, other in NAMES.items()}
        body |= {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": -1 if requested.max_tokens is None else requested.max_tokens,
            "stop": list(requested.stop),
            "repeat_last_n": self.context_tokens,  # the whole context, as other engines do
            "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
        }
        if requested.seed is not None:
            body["seed"] = requested.seed % 2**32
        if requested.logit_bias:
            body["logit_bias"] = [[token, bias] for token, bias in requested.logit_bias.items()]
        if requested.logprobs is not None:
            most = max(requested.logprobs, 1)
            body |= {"logprobs": True, "top_logprobs": most} if chat else {"logprobs": most}
        if requested.constraint is not None:
            body |= self._form(requested.constraint)
        return body

    def _form(self, requested: AnswerForm) -> dict[str, Any]:
        if requested.json_schema is not None or requested.json_object:
            schema = requested.json_schema or {"type": "object"}
            if problem := _invalid(schema):
                raise self._refused(f"constraint: {problem}", "constraint")
            return {"json_schema": schema}
        if requested.choice is not None:
            choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in requested.choice)
            return {"grammar": f"root ::= {choices}"}
        if requested.grammar is not None:
            if problem := _unsound(requested.grammar):
                raise self._refused(f"constraint: {problem}", "constraint")
            return {"grammar": requested.grammar}
        problem = "regular expressions are not supported by llama.cpp's adapter: send a grammar"
        raise self._refused(problem, "constraint")

    def _failure(self, error: Mapping[str, Any]) -> Exception:
        problem = str(error.get("message"))
        if error.get("code") != 400:
            return RuntimeError(f"llama.cpp: {problem}")
        named = re.match(r"Field '(\w+)'", problem)
        meant = (field for words, field in MEANT.items() if words in problem)
        field = named[1] if named else next(meant, None)
        if "exceeds the available context" in problem:
            return PromptTooLong(f"model {self._name!r}: {problem}", field=field)
        return self._refused(problem, field)


def _invalid(schema: Mapping[str, Any]) -> str:
    """Why llama.cpp cannot compile a schema, which it would then ignore; "" if it can."""
    with suppress(ImportError):  # of another extra
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_json_schema(dict(schema))
        return " ".join(str(LLMatcher.validate_grammar(grammar)).split())
    return ""


def _unsound(grammar: str) -> str:
    """Why a grammar is not passed to llama.cpp's parser, which ignores an empty one and takes a
    stack frame for each parenthesis; "" if it is."""
    if not grammar.strip():
        return "the grammar is empty"
    if len(grammar) > MOST_CHARACTERS:
        return f"it has {len(grammar)} characters; at most {MOST_CHARACTERS} are read"
    depth = deepest = 0
    for character in grammar:  # parentheses in quotes count, too: this is a bound
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return "" if deepest <= MOST_DEPTH else f"its parentheses are more than {MOST_DEPTH} deep"


def _with_text_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose calls have their arguments as text, as llama.cpp expects them."""
    made = [dict(message) for message in messages]
    for message in made:
        for place, call in enumerate(calls := list(message.get("tool_calls") or ())):
            text = call["function"].get("arguments", {})
            text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            function = {**call["function"], "arguments": text}
            message["tool_calls"] = calls
            calls[place] = {**call, "type": "function", "function": function}
    return made


def _logprobs(found: Mapping[str, Any] | None, alternatives: int | None) -> list[dict[str, Any]]:
    """llama.cpp's log probabilities in the form of `Delta.logprobs`; it reports more alternatives
    than requested."""

    def entry(token: Mapping[str, Any]) -> dict[str, Any]:
        return {name: token[name] for name in ("token", "id", "logprob", "bytes")}

    tokens = (found or {}).get("content") or ()
    return [
        {**entry(t), "top": [entry(top) for top in t["top_logprobs"][: alternatives or 0]]}
        for t in tokens
    ]


#: The fields of the `AnswerStyle` by which such a text is read.
STYLE: Final[Mapping[str, Any]] = {"tools": "hermes", "thoughts": "think", "opened": False}
_THOUGHTS: Final = THOUGHT_FAMILIES["think"].format


class OneText:
    """Writes one answer as Hermes' models would have written it, since the code for all engines
    reads texts. It arrives as deltas of OpenAI's chats: `reasoning_content`, `content`, and
    `tool_calls` in pieces, each with its `index`."""

    def __init__(self) -> None:
        self._thinking = False
        #: The index of the call in progress, and whether its beginning is written.
        self._index: int | None = None
        self._name = ""
        self._written = False

    def feed(self, delta: Mapping[str, Any]) -> str:
        text = ""
        if thoughts := delta.get("reasoning_content"):
            text = thoughts if self._thinking else _THOUGHTS.begin + thoughts
            self._thinking = True
        if content := delta.get("content"):
            text += self.end() + self._answer() + content
        for piece in delta.get("tool_calls") or ():
            if piece["index"] != self._index:
                text += self.end() + self._answer()
                self._index = piece["index"]
            text += self._more(piece["function"])
        return text

    def end(self) -> str:
        """End the answer, or the call in progress; return the rest of its text."""
        if self._index is None:
            return ""
        rest = "}</tool_call>" if self._written else f"{self._begun()}{{}}}}</tool_call>"
        self._index, self._name, self._written = None, "", False
        return rest

    def _more(self, function: Mapping[str, Any]) -> str:
        self._name += function.get("name") or ""
        arguments = function.get("arguments") or ""
        if self._written or not arguments.strip():
            return arguments if self._written else ""
        self._written = True
        return self._begun() + arguments

    def _begun(self) -> str:
        name = json.dumps(self._name, ensure_ascii=False)
        return f'<tool_call>{{"name": {name}, "arguments": '

    def _answer(self) -> str:
        ends, self._thinking = self._thinking, False
        return _THOUGHTS.end if ends else ""
