"""Which operations has one loaded model, under its name and at its own route?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from wherry.core.api import Form, FunctionModel, LoadedModel
from wherry.server.content.media_types import FORM, JSON_LINES
from wherry.server.http.exchange import JSON
from wherry.server.http.route import (
    BINARY,
    EVENTS,
    FILE,
    OF_NATURAL,
    READS,
    Operation,
    json_of,
)
from wherry.server.openapi.model_schemas import ModelSchemas
from wherry.server.openapi.schemas import SchemaRegistry
from wherry.server.v2.http.described import GENERATE, GENERATE_STREAM, INFER


def model_operations(
    loaded: LoadedModel, registry: SchemaRegistry
) -> Iterator[tuple[str, Operation]]:
    """What this model has by POST, typed by its inputs and outputs."""
    described = ModelSchemas(loaded, registry)
    about, path = about_model(loaded), f"/v2/models/{loaded.name}"
    first_line = about.partition("\n")[0]
    summary = f"{loaded.name}: {first_line}" if first_line else loaded.name
    common: dict[str, Any] = {"tag": loaded.name, "description": about}
    route = loaded.config.route
    if described.speaks_json:
        if route is not None:
            natural = _natural(loaded, described)
            yield route, replace(natural, summary=summary, **common)
        typed = _generate(loaded, described)
        word = "generate_stream" if loaded.signature.streams else "generate"
        told = f"{summary} (V2)" if route else summary
        named = replace(typed, id=f"{word}_{loaded.name}", summary=told, **common)
        yield f"{path}/{word}", named
    if not loaded.signature.streams:
        yield (
            f"{path}/infer",
            replace(
                INFER,
                summary=f"{summary} (as tensors)",
                takes={**INFER.takes, JSON: described.infer_request()},
                gives={**INFER.gives, JSON: described.infer_answer()},
                id=f"infer_{loaded.name}",
                **common,
            ),
        )


def _generate(loaded: LoadedModel, described: ModelSchemas) -> Operation:
    takes = {JSON: described.generate_request(), **_files(described)}
    examples, answer = json_of(described.examples()), described.generate_answer()
    if loaded.signature.streams:
        return replace(GENERATE_STREAM, takes=takes, examples=examples, events=answer)
    gives = {JSON: answer, **_file_answer(loaded)}
    return replace(GENERATE, takes=takes, examples=examples, gives=gives)


def _natural(loaded: LoadedModel, described: ModelSchemas) -> Operation:
    """What the model has at its own route."""
    answer = described.natural_answer()
    made = Operation(
        summary="",
        takes={JSON: described.natural_request(), **_files(described)},
        gives={JSON: answer, **_file_answer(loaded)},
        examples=json_of(described.natural_examples()),
        errors=OF_NATURAL,
        reads=READS,
        parameters=(described.priority_header(),),
        id=loaded.name,
    )
    if not loaded.signature.streams:
        return made
    return replace(made, gives={EVENTS: {}, JSON_LINES: {}}, events=answer)


def _files(described: ModelSchemas) -> dict[str, Any]:
    """The other forms of a body, for a model that takes a file."""
    file = described.file_input
    if file is None:
        return {}
    kinds = file.media.accepts if file.media is not None else ()
    return {FORM: described.form(), **dict.fromkeys((BINARY, *kinds), FILE)}


def _file_answer(loaded: LoadedModel) -> dict[str, Any]:
    """The answer that is a file, if one of the outputs may be one."""
    files = [one for one in loaded.signature.outputs if one.form is Form.BYTES and not one.shape]
    if len(files) != 1:
        return {}
    media = files[0].media
    return {BINARY if media is None else media.media_type: FILE}


def about_model(loaded: LoadedModel) -> str:
    """What its author says of a model: its description, else the docstring of the code."""
    model = loaded.model
    if loaded.config.description:
        return loaded.config.description
    kind = type(model)
    if isinstance(model, FunctionModel):
        return inspect.cleandoc(model.function.__doc__ or "")
    if kind.__module__.partition(".")[0] == "wherry":
        return ""  # it is ours, and says nothing about this model
    return inspect.cleandoc(vars(kind).get("__doc__") or kind.execute.__doc__ or "")
