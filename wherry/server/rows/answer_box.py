"""Which answers to one front leave together?"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.core.api import (
    LARGE_BYTES,
    Columns,
    InferResponse,
    WherryError,
    WorkerLink,
    bytes_of,
    log_internal_error,
)
from wherry.server.remote.columns import is_small, joined, packed
from wherry.server.remote.errors import refused
from wherry.server.remote.link_protocol import Response, RowAnswers
from wherry.server.rows.reply import RowOrStream, RowReply, RowStream, ServedModel


class AnswerBox:
    """Makes messages of the outcomes of one front's requests."""

    def __init__(self, wire: WorkerLink) -> None:
        self._wire = wire

    def responded(self, reply: RowStream, response: InferResponse) -> None:
        """A request that streams has a response."""
        self._respond(reply, response, ends=False)

    def tell(self, ended: Sequence[RowOrStream]) -> None:
        """Add the messages that tell of these outcomes to what is sent next."""
        alike: dict[ServedModel, list[RowOrStream]] = {}
        for reply in ended:
            outcome = reply.outcome
            if isinstance(outcome, Exception):
                if not isinstance(outcome, WherryError):
                    log_internal_error(outcome)
                self._wire.add(refused(reply.model.number, [reply.id], outcome))
            elif outcome.rows == 1 and not outcome.parameters and type(reply) is RowReply:
                alike.setdefault(reply.model, []).append(reply)
            else:
                self._respond(reply, outcome, ends=True)
        for model, replies in alike.items():
            self._answer(model, replies)

    def _answer(self, model: ServedModel, replies: list[RowOrStream]) -> None:
        outputs: list[Columns] = [reply.outcome.outputs for reply in replies]  # type: ignore[union-attr]
        columns = outputs[0] if len(outputs) == 1 else joined(outputs)
        if columns is None:
            for reply in replies:
                self._respond(reply, reply.result(), ends=True)
            return
        columns = packed(columns, model.shaped_out)
        message = RowAnswers(model.number, [reply.id for reply in replies], columns)
        self._wire.add(message, large=not is_small(columns) and bytes_of(columns) > LARGE_BYTES)

    def _respond(self, reply: RowOrStream, response: InferResponse, *, ends: bool) -> None:
        columns = packed(response.outputs, reply.model.shaped_out)
        self._wire.add(
            Response(
                reply.model.number,
                reply.id,
                response.rows,
                columns,
                response.parameters,
                response.final,
                ends,
            ),
            large=not is_small(columns) and bytes_of(columns) > LARGE_BYTES,
        )
