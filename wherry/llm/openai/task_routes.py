"""Which model makes vectors, scores, an order of documents, or the text of a recording?"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from wherry.core.api import Buffer, LoadedModel
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.generation import Generation
from wherry.llm.openai.generation_request import ModelCall
from wherry.llm.openai.models import AbleModels, hearing_fit
from wherry.llm.openai.reading import decoded
from wherry.llm.openai.task_requests import EmbeddingRequest, RerankRequest, ScoreRequest
from wherry.llm.openai.tasks import (
    PairScores,
    Ranking,
    RowsCall,
    Task,
    Vectors,
    embedding,
    rerank,
    score,
)
from wherry.llm.openai.transcription import (
    Transcription,
    TranscriptionAnswer,
    TranscriptionEvent,
    TranscriptionRequest,
    read_form,
)
from wherry.server.api import (
    ANY_TEXT,
    EVENTS,
    FILE,
    FORM,
    JSON,
    OF_INFERENCE,
    READS,
    STREAMED,
    TEXT,
    Exchange,
    Operation,
    Route,
    inference,
    list_of,
    named_values,
    object_of,
)

#: Abilities of models for pairs of texts, the better one first.
OF_PAIRS: Final = ("scores", "cosines")
#: The request and the answer of each path, the abilities of which the model has one, and what
#: answers.
TASKS: Final[dict[str, tuple[str, type[msgspec.Struct], Any, tuple[str, ...], Any]]] = {
    "/v1/embeddings": (
        "Make vectors of texts", EmbeddingRequest, Vectors, ("embeddings",), embedding
    ),
    **dict.fromkeys(  # where Jina, vLLM and Cohere have it
        ("/v1/rerank", "/rerank", "/v2/rerank"),
        ("Order documents by a query", RerankRequest, Ranking, OF_PAIRS, rerank),
    ),
    **dict.fromkeys(
        ("/v1/score", "/score"),
        ("Score pairs of texts", ScoreRequest, PairScores, OF_PAIRS, score),
    ),
}  # fmt: skip
#: The model's ability, its input `task`, if it has one, and what it does.
HEARING: Final = {
    "/v1/audio/transcriptions": ("transcriptions", "transcribe", "Transcribe a recording"),
    "/v1/audio/translations": (
        "translations", "translate", "Transcribe a recording in English"
    ),
}  # fmt: skip
#: The form of a recording.
RECORDING: Final = object_of(
    {
        "file": FILE,
        **dict.fromkeys(("model", "language", "prompt"), ANY_TEXT),
        "temperature": {"type": "number"},
        "stream": {"type": "boolean"},
        "response_format": {
            "type": "string",
            "enum": ["json", "text", "verbose_json", "srt", "vtt"],
        },
        "timestamp_granularities[]": list_of({"type": "string", "enum": ["segment", "word"]}),
    },
    ["file"],
    title="TranscriptionForm",
)


def _hearing(summary: str) -> Operation:
    return Operation(
        summary=summary,
        description=STREAMED,
        takes={FORM: RECORDING},
        gives={JSON: Transcription, TEXT: ANY_TEXT, "text/vtt": ANY_TEXT, EVENTS: {}},
        events=TranscriptionEvent,
        errors=(*OF_INFERENCE, 415),
        reads=READS,
    )


class TaskRoutes:
    """The routes of one server."""

    def __init__(self, models: AbleModels) -> None:
        self._models = models

    def routes(self) -> dict[str, Route]:
        route = self._models.route
        tasks = {
            path: route(
                partial(self._answer, takes, able, task), inference(summary, takes, gives), *able
            )
            for path, (summary, takes, gives, able, task) in TASKS.items()
        }
        hearing = {
            path: route(partial(self._hear, ability, task), _hearing(summary), ability)
            for path, (ability, task, summary) in HEARING.items()
        }
        return {**tasks, **hearing}

    def _answer(
        self, fields: type[msgspec.Struct], able: tuple[str, ...], task_of: Any, exchange: Exchange
    ) -> None:
        def read(request: ClientRequest, body: Buffer) -> tuple[LoadedModel, Any, Task]:
            parsed: Any = decoded(body, fields, request.ignored)
            loaded = self._models.able(parsed.model, *able)
            task: Task = task_of(loaded, parsed)
            task.values.counted().parameters["priority"] = parsed.priority or 0
            return loaded, parsed, task

        def start(request: ClientRequest, read: tuple[LoadedModel, Any, Task]) -> None:
            loaded, parsed, task = read
            RowsCall(request.entry, loaded, task, request).submit(parsed)

        ClientRequest(self._models.entry, exchange).read(read, start)

    def _hear(self, ability: str, task: str, exchange: Exchange) -> None:
        def read(request: ClientRequest, body: Buffer) -> tuple[TranscriptionRequest, bytes]:
            return read_form(named_values(exchange.request.head, body), request.ignored)

        def start(request: ClientRequest, form: tuple[TranscriptionRequest, bytes]) -> None:
            parsed, audio = form
            loaded = self._models.able(parsed.model, ability)
            fit = hearing_fit(loaded.signature)
            assert fit is not None
            inputs = {**parsed.inputs(), fit.audio.name: audio}
            answer = TranscriptionAnswer(loaded, request.id, parsed, task)
            if fit.translates:
                inputs["task"] = task
            call = ModelCall(inputs)
            call.measure()
            Generation(request, loaded, parsed, answer).submit(call)

        ClientRequest(self._models.entry, exchange).read(read, start, is_json=False)
