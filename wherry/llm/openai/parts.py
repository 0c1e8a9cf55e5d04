"""Which parts has a chat's answer, thoughts, text and calls, and when does each begin and end?

For protocols whose answers are lists of such parts: the chat's chunks say what a part is, these
say how it goes onto the wire.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.generation import ChoiceDelta, Json, OpenAIAnswer

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class AnswerPart:
    """One part of an answer, as far as it has come."""

    kind: Kind
    place: int
    #: Of a call: its id and the function's name.
    id: str = ""
    name: str = ""
    #: Of a call: its arguments.
    text: str = ""
    #: Of a text: the log probabilities of its tokens, as a chat has them.
    logprobs: list[Json] = field(default_factory=list)


class PartedAnswer(OpenAIAnswer):
    """An answer in parts, in the order in which the model wrote them; a call ends the text before
    it. One choice only."""

    last = None

    def __init__(self, chat: ChatAnswer) -> None:
        super().__init__(chat.model, chat.request_id)
        self.id = f"{self.prefix}_{chat.request_id}"
        self.usage, self.choices = chat.usage, chat.choices
        self.parts: list[AnswerPart] = []
        #: Log probabilities of tokens whose text is still to come.
        self._tokens: list[Json] = []
        self._chat = chat
        #: The last part goes on.
        self._open = False
        self._begun = False

    # What a protocol sends

    @abstractmethod
    def begun(self, piece: ChoiceDelta | None) -> list[Json]:
        """The events before all others; `piece` is the first one, if there is any."""

    @abstractmethod
    def opened(self, part: AnswerPart) -> list[Json]:
        """The events of a part that begins."""

    @abstractmethod
    def grown(self, part: AnswerPart, text: str, logprobs: Sequence[Json]) -> list[Json]:
        """The events of more text of a part, which has it already, and of that text's tokens."""

    @abstractmethod
    def closed(self, part: AnswerPart, *, cut: bool) -> list[Json]:
        """The events of a part that ends; `cut`: the answer was not at its end."""

    @abstractmethod
    def ended(self, choice: Json | None) -> list[Json]:
        """The last events; None: the model has said nothing."""

    def chunk(self, choice: Json) -> Json:
        return choice

    # As it comes

    def add(self, piece: ChoiceDelta) -> list[Json]:
        events = self._begin(piece)
        for chunk in self._chat.add(piece):
            events += self._more(chunk)
        return events

    def end(self) -> list[Json]:
        events = self._begin(None)
        for chunk in self._chat.end():
            events += self._more(chunk)
        if self._open:
            self._give_tokens(self.parts[-1])  # those whose text does not show
        choice = self.choices.get(0)
        cut = choice is not None and choice["finish_reason"] == "length"
        return [*events, *self._close(cut=cut), *self.ended(choice)]

    def _begin(self, piece: ChoiceDelta | None) -> list[Json]:
        begun, self._begun = self._begun, True
        return [] if begun else self.begun(piece)

    def _more(self, chunk: Json) -> list[Json]:
        events, delta = list[Json](), chunk["delta"]
        if logprobs := chunk["logprobs"]:
            self._tokens += logprobs["content"]
        if text := delta.get("reasoning_content"):
            events += self._grow("reasoning", text)
        if text := delta.get("content"):
            events += self._grow("text", text)
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                events += self._start("call", id=call["id"], name=function["name"])
            if text := function.get("arguments"):
                events += self._grow("call", text)
        return events

    def _grow(self, kind: Kind, text: str) -> list[Json]:
        going_on = self._open and self.parts[-1].kind == kind
        events = [] if going_on else self._start(kind)
        part = self.parts[-1]
        part.text += text
        return [*events, *self.grown(part, text, self._give_tokens(part))]

    def _start(self, kind: Kind, **about: Any) -> list[Json]:
        events = self._close(cut=False)
        part = AnswerPart(kind, len(self.parts), **about)
        self.parts.append(part)
        self._open = True
        return [*events, *self.opened(part)]

    def _close(self, *, cut: bool) -> list[Json]:
        was_open, self._open = self._open, False
        return self.closed(self.parts[-1], cut=cut) if was_open else []

    def _give_tokens(self, part: AnswerPart) -> list[Json]:
        """Give the tokens that wait to a part; only a text keeps them."""
        tokens, self._tokens = self._tokens, []
        if part.kind == "text":
            part.logprobs += tokens
        return tokens
