"""How is a response made, which may continue one that is kept, and which are kept?"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import parse_qs

import msgspec

from wherry.core.api import Buffer
from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.chat_request import ChatCall
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.errors import BadField, NotKept, PreviousNotKept, UnknownRoute, fail
from wherry.llm.openai.generation import Generation
from wherry.llm.openai.models import AbleModels
from wherry.llm.openai.reading import UNKNOWN, decoded
from wherry.llm.openai.response_answer import (
    ResponseAnswer,
    ResponseEvent,
    ResponseObject,
)
from wherry.llm.openai.response_request import NOTHING_KEPT, ResponsesRequest
from wherry.server.api import (
    Exchange,
    Route,
    check_values,
    generation,
    respond,
    returns,
)

#: After its last use, in seconds.
KEPT_FOR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A response, and what it answered.

    `response` is its JSON, `input_items` that of its input's items, and `previous` the id of the
    response before it, or "". `owner` is the name of the key in its request.
    """

    id: str
    response: bytes
    input_items: bytes
    previous: str = ""
    owner: str = ""

    @property
    def nbytes(self) -> int:
        return len(self.response) + len(self.input_items)


class KeptResponses:
    """The turns of all conversations, at most `most_bytes` of JSON; 0: none are kept.

    The least recently used makes room. One loop uses it.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_bytes = most_bytes
        self._clock = clock
        #: With the time of its last use, the oldest first.
        self._turns: OrderedDict[str, tuple[KeptTurn, float]] = OrderedDict()
        self._nbytes = 0

    def __bool__(self) -> bool:
        return self.most_bytes > 0

    def __len__(self) -> int:
        return len(self._turns)

    def keep(self, turn: KeptTurn) -> bool:
        """Keep a turn under a new id if it fits at all; return whether it does."""
        if fits := turn.nbytes <= self.most_bytes:
            self._turns[turn.id] = turn, self._clock()
            self._nbytes += turn.nbytes
        self._make_room()
        return fits

    def find(self, id: str, owner: str) -> KeptTurn | None:
        """Return the owner's turn. Counts as a use."""
        self._make_room()
        turn, _ = self._turns.get(id, (None, 0))
        if turn is None or turn.owner != owner:
            return None
        self._turns[id] = turn, self._clock()
        self._turns.move_to_end(id)
        return turn

    def conversation(self, last: str, owner: str) -> list[KeptTurn] | None:
        """Return the turns up to `last`, the first one first; None if one of them is gone."""
        turns: list[KeptTurn] = []
        while last:
            turn = self.find(last, owner)
            if turn is None:
                return None
            turns.append(turn)
            last = turn.previous
        return turns[::-1]

    def remove(self, id: str) -> None:
        turn, _ = self._turns.pop(id, (None, 0))
        self._nbytes -= 0 if turn is None else turn.nbytes

    def _make_room(self) -> None:
        over = self._clock() - KEPT_FOR
        while self._turns:
            id, (_, used) = next(iter(self._turns.items()))
            if self._nbytes <= self.most_bytes and used > over:
                return
            self.remove(id)


PATH: Final = "/v1/responses"
Json = dict[str, Any]


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response that is not kept any more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


@dataclass(slots=True)
class ResponseContext:
    """A request, and the chat that it is with the conversation before it."""

    parsed: ResponsesRequest
    #: The places of the items that only refer to others, and the ids of those.
    references: list[tuple[str, str]]
    #: The JSON of the request's own items.
    input_items: bytes = b""
    call: ChatCall = field(init=False)

    @property
    def refers(self) -> bool:
        """Whether kept turns are a part of this request."""
        return bool(self.parsed.previous_response_id or self.references)

    def read(self, before: Sequence[Json] = ()) -> ChatCall:
        """Make the chat, which continues the items `before`."""
        self.input_items = msgspec.json.encode(self.parsed.items())
        self.call = self.parsed.chat(before).call("parameters")
        return self.call


class ResponseRoutes:
    """The routes below /v1/responses of one server, and the responses that it keeps."""

    def __init__(self, models: AbleModels) -> None:
        self._models = models
        self._kept = KeptResponses(models.entry.common.openai.max_kept_responses)

    def routes(self) -> dict[str, Route]:
        operation = generation(
            "Continue a conversation, in OpenAI's newer form",
            ResponsesRequest,
            ResponseObject,
            ResponseEvent,
        )
        kept = {
            "GET": returns("A stored response", ResponseObject, 404),
            "DELETE": returns("Delete a response", ResponseDeleted, 404),
        }
        handlers = dict.fromkeys(kept, self._one)
        return {
            PATH: self._models.route(self._read, self._find, operation, "chat"),
            f"{PATH}/{{response}}": Route(handlers, "inference", operations=kept, needs=("chat",)),
        }

    # A new response

    def _read(self, request: ClientRequest, body: Buffer) -> ResponseContext:
        ignored = request.ignored
        parsed = decoded(body, ResponsesRequest, ignored)
        parsed.check_kept(keeps=bool(self._kept))
        if left_out := parsed.hosted():
            if ignored is None:
                raise BadField(left_out[0], "is a tool that no server runs here")
            theirs = tuple(f"{tool}." for tool in left_out)
            ignored[:] = [name for name in ignored if not name.startswith(theirs)] + left_out
        if unknown := parsed.unknown():
            if ignored is None:
                raise BadField(unknown[0], UNKNOWN)
            ignored += unknown
        context = ResponseContext(parsed, list(parsed.references()))
        if not context.refers:
            request.checked(context.read(), body)
        return context

    def _find(self, request: ClientRequest, context: ResponseContext) -> None:
        """Look up what the request refers to, and start. It may be long: another thread reads
        it."""
        parsed = context.parsed
        if not context.refers:
            self._start(request, context)
            return
        before, named = self._referred(context, request.exchange.request.caller)
        kept, earlier = [*before, *named.values()], sum(turn.nbytes for turn in before)
        if earlier > (most := request.entry.max_body_bytes):
            raise _too_large("previous_response_id", earlier)

        def read() -> ResponseContext:
            check_values(b"".join(p for turn in kept for p in (turn.input_items, turn.response)))
            items = {id: item for turn in named.values() for id, item in _by_id(turn)}
            context.parsed = parsed.whole(items)
            _check_sizes(context.references, items, earlier, most)
            context.read([item for turn in before for item in _items_of(turn)]).measure()
            return context

        request.off_loop(read, partial(self._start, request), reads=True)

    def _referred(
        self, context: ResponseContext, owner: str
    ) -> tuple[list[KeptTurn], dict[str, KeptTurn]]:
        """The turns before the request, and those of the items that it refers to."""
        previous = context.parsed.previous_response_id or ""
        before = self._kept.conversation(previous, owner)
        if before is None:
            raise PreviousNotKept(previous)
        named: dict[str, KeptTurn] = {}
        for where, id in context.references:
            if (of := _response_of(id)) not in named:
                turn = self._kept.find(of, owner)
                if turn is None:
                    why = f"no item '{id[:80]}' is kept" if self._kept else NOTHING_KEPT
                    raise BadField(where, f"{why}: send it whole")
                named[of] = turn
        return before, named

    def _start(self, request: ClientRequest, context: ResponseContext) -> None:
        parsed, sent = context.parsed, request.exchange.request
        loaded = self._models.able(parsed.model, "chat")
        # What is kept is found by its id alone: it must not be guessed from another's, nor be one
        # that the client has sent already.
        sent.own_id = id = secrets.token_hex(16)
        chat = ChatAnswer(parsed.model or loaded.reported_name(), id, context.call.calls)
        keeps = bool(self._kept) and parsed.store is not False
        keep = partial(self._keep, context, sent.caller) if keeps else None
        repeated = {**parsed.repeated(), "store": keeps}
        answer = ResponseAnswer(chat, repeated, keep, parsed.call_names())
        Generation(request, loaded, parsed, answer).submit(context.call)

    def _keep(self, context: ResponseContext, owner: str, response: ResponseObject) -> bool:
        previous = context.parsed.previous_response_id or ""
        encoded = msgspec.json.encode(response)
        return self._kept.keep(KeptTurn(response.id, encoded, context.input_items, previous, owner))

    # One that is kept

    def _one(self, id: str, exchange: Exchange) -> None:
        request = exchange.request
        try:
            if not self._kept:
                off = "this server keeps no responses (--max-kept-responses 0, or --fronts)"
                raise UnknownRoute(f"{request.path} is not among the routes: {off}")
            turn = self._kept.find(id, request.caller)
            if turn is None:
                raise NotKept(f"Response with id '{id[:80]}' not found.")
            if request.method == "DELETE":
                self._kept.remove(id)
                gone = ResponseDeleted(id=id, object="response", deleted=True)
                respond(exchange, msgspec.json.encode(gone))
                return
            if parse_qs(request.query).get("stream", ["false"])[-1].lower() not in ("false", "0"):
                raise BadField("stream", "no events are kept: get the response without it")
            respond(exchange, turn.response)
        except Exception as error:  # noqa: BLE001 - any error is the client's answer
            fail(exchange, error)


def _too_large(field: str, nbytes: int) -> BadField:
    problem = f"the conversation is of {nbytes} bytes, more than a body may have: begin a new one"
    return BadField(field, problem)


def _check_sizes(
    references: Sequence[tuple[str, str]], items: Mapping[str, Json], earlier: int, most: int
) -> None:
    """Refuse references to more bytes than a body may have: an item counts at each reference."""
    sizes = {id: len(msgspec.json.encode(items[id])) for id in {id for _, id in references}}
    total = earlier
    for where, id in references:
        total += sizes[id]
        if total > most:
            raise _too_large(where, total)


def _response_of(item: str) -> str:
    """The id of the response that has the item of this id."""
    return f"resp_{item.split('_')[-2]}" if item.count("_") > 1 else ""


def _items_of(turn: KeptTurn) -> list[Json]:
    input_items: list[Json] = msgspec.json.decode(turn.input_items)
    return input_items + [item for _, item in _by_id(turn)]


def _by_id(turn: KeptTurn) -> list[tuple[str, Json]]:
    return [(item["id"], item) for item in msgspec.json.decode(turn.response)["output"]]
