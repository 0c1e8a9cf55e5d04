"""Which model makes vectors, scores, an order of documents, or the text of a recording?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from wherry.core.api import Buffer, LoadedModel
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.generation import Generation
from wherry.llm.openai.generation_request import ModelCall
from wherry.llm.openai.models import AbleModels, audio_fit
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
    Operation,
    Route,
    inference,
    list_of,
    named_values,
    object_of,
)

#: The request and the answer of each path, the model's ability, and the task that answers.
TASKS: Final[dict[str, tuple[str, type[msgspec.Struct], Any, str, Any]]] = {
    "/v1/embeddings": (
        "Embed texts", EmbeddingRequest, Vectors, "embeddings", embedding
    ),
    **dict.fromkeys(  # where Jina, vLLM and Cohere have it
        ("/v1/rerank", "/rerank", "/v2/rerank"),
        ("Rank documents by a query", RerankRequest, Ranking, "scores", rerank),
    ),
    **dict.fromkeys(
        ("/v1/score", "/score"),
        ("Score pairs of texts", ScoreRequest, PairScores, "scores", score),
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


def task_routes(models: AbleModels) -> dict[str, Route]:
    tasks = {
        path: _task(models, task, takes, inference(summary, takes, gives), ability)
        for path, (summary, takes, gives, ability, task) in TASKS.items()
    }
    transcribing = {
        path: _transcribing(models, task, summary, ability)
        for path, (ability, task, summary) in HEARING.items()
    }
    return {**tasks, **transcribing}


def _task(
    models: AbleModels,
    task_of: Callable[[LoadedModel, Any], Task],
    kind: type[msgspec.Struct],
    operation: Operation,
    ability: str,
) -> Route:
    def read(request: ClientRequest, body: Buffer) -> tuple[LoadedModel, Any, Task]:
        fields: Any = decoded(body, kind, request.ignored)
        loaded = models.able(fields.model, ability)
        task = task_of(loaded, fields)
        task.values.counted().parameters["priority"] = fields.priority or 0
        return loaded, fields, task

    def start(request: ClientRequest, decoded: tuple[LoadedModel, Any, Task]) -> None:
        loaded, fields, task = decoded
        RowsCall(request.entry, loaded, task, request).submit(fields)

    return models.route(read, start, operation, ability)


def _transcribing(models: AbleModels, task: str, summary: str, ability: str) -> Route:
    def read(request: ClientRequest, body: Buffer) -> tuple[TranscriptionRequest, bytes]:
        values = named_values(request.exchange.request.head, body)
        return read_form(values, request.ignored)

    def start(request: ClientRequest, form: tuple[TranscriptionRequest, bytes]) -> None:
        fields, audio = form
        loaded = models.able(fields.model, ability)
        fit = audio_fit(loaded.signature)
        assert fit is not None
        inputs = {**fields.inputs(), fit.audio.name: audio}
        answer = TranscriptionAnswer(loaded, request.id, fields, task)
        if fit.translates:
            inputs["task"] = task
        call = ModelCall(inputs)
        call.measure()
        Generation(request, loaded, fields, answer).submit(call)

    operation = Operation(
        summary=summary,
        description=STREAMED,
        takes={FORM: RECORDING},
        gives={JSON: Transcription, TEXT: ANY_TEXT, "text/vtt": ANY_TEXT, EVENTS: {}},
        events=TranscriptionEvent,
        errors=(*OF_INFERENCE, 415),
        reads=READS,
    )
    return models.route(read, start, operation, ability)
