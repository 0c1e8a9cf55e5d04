"""Which parts has a chat's answer, thoughts, text and calls, and when does each begin and end?

For protocols whose answers are lists of such parts: the chat's chunks define the parts, the
protocol defines their form on the wire.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from wherry.llm.openai.chat_answer import ChatAnswer, ChatChoice, ChunkChoice
from wherry.llm.openai.generation import ChoiceDelta, OpenAIAnswer

Kind = Literal["reasoning", "text", "call"]
#: What a protocol sends.
EventT = TypeVar("EventT", bound=msgspec.Struct)


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


class PartedAnswer(OpenAIAnswer, Generic[EventT]):
    """An answer in parts, in the order in which the model wrote them; a call ends the text before
    it. One choice only."""

    last = None

    def __init__(self, chat: ChatAnswer) -> None:
        super().__init__(chat.model, chat.request_id)
        self.id = f"{self.prefix}_{chat.request_id}"
        self.choices, self.usage = chat.choices, chat.usage
        self.parts: list[AnswerPart] = []
        self._chat = chat
        #: The last part goes on.
        self._open = False
        self._begun = False

    # What a protocol sends

    @abstractmethod
    def begun(self, piece: ChoiceDelta | None) -> list[EventT]:
        """The events before all others; `piece` is the first one, if any."""

    @abstractmethod
    def opened(self, part: AnswerPart) -> list[EventT]:
        """The events of a part that begins."""

    @abstractmethod
    def grown(self, part: AnswerPart, text: str) -> list[EventT]:
        """The events of more text of a part. The part already includes it."""

    @abstractmethod
    def closed(self, part: AnswerPart, *, cut: bool) -> list[EventT]:
        """The events of a part that ends; `cut`: the answer was not at its end."""

    @abstractmethod
    def ended(self, choice: ChatChoice) -> list[EventT]:
        """The last events."""

    # Pieces as they come

    def add(self, piece: ChoiceDelta) -> list[EventT]:
        events = self._begin(piece)
        for chunk in self._chat.add(piece):
            events += self._more(chunk)
        return events

    def end(self) -> list[EventT]:
        events = self._begin(None)
        for chunk in self._chat.end():
            events += self._more(chunk)
        choice = self._chat.choices[0]
        cut = choice.finish_reason == "length"
        return [*events, *self._close(cut=cut), *self.ended(choice)]

    def _begin(self, piece: ChoiceDelta | None) -> list[EventT]:
        begun, self._begun = self._begun, True
        return [] if begun else self.begun(piece)

    def _more(self, chunk: ChunkChoice) -> list[EventT]:
        events, delta = list[EventT](), chunk.delta
        if delta.reasoning_content:
            events += self._grow("reasoning", delta.reasoning_content)
        if delta.content:
            events += self._grow("text", delta.content)
        for call in delta.tool_calls or ():
            if call.id:
                events += self._start("call", id=call.id, name=call.function.name)
            if call.function.arguments:
                events += self._grow("call", call.function.arguments)
        return events

    def _grow(self, kind: Kind, text: str) -> list[EventT]:
        going_on = self._open and self.parts[-1].kind == kind
        events = [] if going_on else self._start(kind)
        part = self.parts[-1]
        part.text += text
        return [*events, *self.grown(part, text)]

    def _start(self, kind: Kind, **about: Any) -> list[EventT]:
        events = self._close(cut=False)
        part = AnswerPart(kind, len(self.parts), **about)
        self.parts.append(part)
        self._open = True
        return [*events, *self.opened(part)]

    def _close(self, *, cut: bool) -> list[EventT]:
        was_open, self._open = self._open, False
        return self.closed(self.parts[-1], cut=cut) if was_open else []
