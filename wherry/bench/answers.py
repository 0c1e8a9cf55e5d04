"""What is read from an answer's body: when its pieces came, how many tokens it has, an error?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec


class AnswerReader:
    """The pieces and tokens of an answer. Subclasses read them from its bytes.

    `first` and `gaps`: the moment of the first piece, and the seconds from each to the next. All
    pieces of one read came at the same moment.
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.gaps: list[float] = []
        self.tokens_in = self.tokens_out = 0
        self._last = 0.0

    def feed(self, data: bytes, now: float) -> None:
        raise NotImplementedError

    def ended(self) -> str:
        """Take the answer as complete. Returns its error, or ""."""
        return "" if self.first is not None else "a stream without any piece"

    def piece(self, now: float) -> None:
        """Count a piece (a token, or a response) that came at `now`."""
        self.tokens_out += 1
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self._last)
        self._last = now


#: What msgspec raises for bytes that are not JSON, for invalid UTF-8, and for depth.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: The range of a record's column.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: Any = None
    delta: _Delta | None = None
    finish_reason: Any = None


class _OpenAi(msgspec.Struct):
    """A chunk of a stream, or a whole answer."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_OpenAi)


class WholeAnswer(AnswerReader):
    """A whole OpenAI answer: its usage counts the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def feed(self, data: bytes, now: float) -> None:
        self._pieces.append(data)

    def ended(self) -> str:
        try:
            answer = _DECODER.decode(b"".join(self._pieces))
        except NOT_JSON as error:
            return f"not an OpenAI answer: {error}"
        if answer.usage is not None:
            self.tokens_in = answer.usage.prompt_tokens
            self.tokens_out = answer.usage.completion_tokens
        return _error_text(answer.error)


class Events(AnswerReader):
    """A stream of server-sent events; each event with content is a piece (a token)."""

    def __init__(self) -> None:
        super().__init__()
        #: The beginning of an event whose end has not come; already searched.
        self._rest = bytearray()
        self._return = b""
        self._problem = ""

    def feed(self, data: bytes, now: float) -> None:
        data = self._return + data
        self._return = b"\r" if data.endswith(b"\r") else b""  # its \n may come
        if b"\r" in data:
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n")
        looked = max(0, len(self._rest) - 1)
        self._rest += data
        end = self._rest.rfind(b"\n\n", looked)
        if end < 0:
            return
        events = bytes(self._rest[:end])
        del self._rest[: end + 2]
        for line in events.split(b"\n"):
            if line.startswith(b"data:"):
                self._line(line[5:].strip(), now)

    def ended(self) -> str:
        if self._rest.strip():
            self.feed(b"\n\n", self._last)
        return self._problem or super().ended()

    def _line(self, data: bytes, now: float) -> None:
        raise NotImplementedError

    def _fails(self, problem: str) -> None:
        self._problem = self._problem or problem[:300]


class OpenAiEvents(Events):
    """Chat and completion chunks. The stream's own usage, if it sends one, counts the tokens.

    It is complete with its finish_reason, too: some servers send no [DONE].
    """

    def __init__(self) -> None:
        super().__init__()
        self._done = False

    def _line(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = _DECODER.decode(data)
        except NOT_JSON as error:
            return self._fails(f"not an OpenAI event: {error}")
        if chunk.error is not None:
            return self._fails(_error_text(chunk.error))
        if any(_has_content(choice) for choice in chunk.choices):
            self.piece(now)
        self._done = self._done or any(choice.finish_reason for choice in chunk.choices)
        if chunk.usage is not None:
            self.tokens_in = chunk.usage.prompt_tokens
            self.tokens_out = chunk.usage.completion_tokens or self.tokens_out

    def ended(self) -> str:
        problem = super().ended()
        return problem or ("" if self._done else "the stream ended without finish_reason or [DONE]")


class V2Events(Events):
    """generate_stream: every event is a response; one with an `error` is the last."""

    def _line(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            return
        self.piece(now)
        if b'"error"' in data:
            try:
                event = msgspec.json.decode(data)
            except NOT_JSON as error:
                return self._fails(f"an event that is not JSON: {error}")
            if isinstance(event, dict) and event.get("error"):
                self._fails(_error_text(event["error"]))


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text) or (
        delta is not None
        and bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)
    )


def _error_text(error: Any) -> str:
    if not error:
        return ""
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)


#: By a target's `Wire.reads`.
READERS: Final[Mapping[str, Callable[[], AnswerReader]]] = {
    "openai": WholeAnswer,
    "openai_events": OpenAiEvents,
    "v2_events": V2Events,
}
