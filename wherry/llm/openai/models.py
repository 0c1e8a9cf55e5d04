"""Which models can answer the requests of language models' routes, by their inputs and outputs?

Names decide only between inputs that are alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from msgspec.structs import replace

from wherry.core.api import (
    Form,
    LoadedModel,
    ModelNotFound,
    Signature,
    TensorSpec,
)
from wherry.llm.openai.client_request import OPENAI, ClientForm, ClientRequest, Reader, Start
from wherry.llm.openai.errors import BadField, UnknownModel, UnknownRoute, fail
from wherry.server.api import Exchange, HttpEntry, Operation, Route

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VectorFit:
    """A model that makes a vector of a text, of a list of tokens, or of either."""

    text: TensorSpec | None
    tokens: TensorSpec | None
    vector: TensorSpec


@dataclass(frozen=True, slots=True)
class ScoreFit:
    """A cross encoder: it scores by one number how well two texts go together."""

    query: TensorSpec
    document: TensorSpec
    score: TensorSpec


@dataclass(frozen=True, slots=True)
class AudioFit:
    """A model that makes a text of a recording."""

    audio: TensorSpec
    #: Whether it has an input that selects translation.
    translates: bool


def vector_fit(signature: Signature) -> VectorFit | None:
    """One vector of floats a row, of a text or of tokens."""
    vectors = [s for s in signature.outputs if s.form is Form.ARRAY and len(s.shape) == 1]
    if signature.streams or len(vectors) != 1 or not _is_floats(vectors[0]):
        return None
    text, tokens = (
        _one([spec for spec in signature.inputs if fits(spec)]) for fits in (_is_text, _is_tokens)
    )
    needed = [spec for spec in signature.inputs if not spec.optional]
    if needed:  # the others cannot stand alone
        text, tokens = (spec if [spec] == needed else None for spec in (text, tokens))
    return VectorFit(text, tokens, vectors[0]) if text or tokens else None


def score_fit(signature: Signature) -> ScoreFit | None:
    scores = [spec for spec in signature.outputs if _is_number(spec)]
    needed = [spec for spec in signature.inputs if not spec.optional]
    if signature.streams or len(scores) != 1 or len(needed) != 2 or not all(map(_is_text, needed)):
        return None
    query, document = needed
    if document.name == "query":
        query, document = document, query
    return ScoreFit(query, document, scores[0])


def audio_fit(signature: Signature) -> AudioFit | None:
    needed = [spec for spec in signature.inputs if not spec.optional]
    if len(needed) != 1 or not _is_audio(needed[0]) or text_output(signature) is None:
        return None
    task = signature.input("task")
    return AudioFit(needed[0], task is not None and _is_text(task))


def text_output(signature: Signature) -> TensorSpec | None:
    """The output that is the answer's text: the only one, or the one of that name."""
    outputs = signature.outputs
    found = outputs[0] if len(outputs) == 1 else signature.output("text")
    return found if found is not None and found.form is Form.TEXT else None


def _one(specs: Sequence[TensorSpec]) -> TensorSpec | None:
    needed = [spec for spec in specs if not spec.optional]
    return specs[0] if len(specs) == 1 else needed[0] if len(needed) == 1 else None


def _is_text(spec: TensorSpec) -> bool:
    return spec.form is Form.TEXT and spec.shape == ()


def _is_tokens(spec: TensorSpec) -> bool:
    """Whether a row is a list of whole numbers of any length."""
    if spec.form is Form.JSON:
        return spec.holds_lists and get_args(spec.json_type) == (int,)
    whole = spec.datatype.dtype.kind in "iu"
    return whole and spec.form in (Form.ARRAY, Form.ARRAYS) and spec.shape == (-1,)


def _is_audio(spec: TensorSpec) -> bool:
    """Whether a row is a recording: decoded for the model, or a file that it decodes itself."""
    media = spec.media
    if media is None or spec.shape != ():
        return False
    return media.kind == "audio" or (
        media.kind == "file" and any(one.startswith("audio/") for one in media.accepts)
    )


def _is_floats(spec: TensorSpec) -> bool:
    return spec.datatype.dtype.kind == "f" and not spec.form.is_bytes


def _is_number(spec: TensorSpec) -> bool:
    return _is_floats(spec) and spec.form is not Form.ARRAYS and spec.shape in ((), (1,))


NEEDS: Final = {
    "chat": "it has no input 'messages' and text as its output",
    "completions": "it has no input 'prompt' and text as its output",
    "embeddings": (
        "it does not make one vector of floats of one text or list of tokens, its only required"
        " input"
    ),
    "scores": ("it does not make one float of two texts, its only required inputs"),
    "transcriptions": "it does not make text of audio, its only required input",
    "translations": "it does not make text of audio, its only required input, or has no 'task'",
    "tokens": "it has no input 'task'",
}


#: Inputs that a chat or a completion can have; a model that needs others is for neither.
CHAT_INPUTS: Final = frozenset(
    ("messages", "prompt", "token_ids", "parameters", "stream", "tools", "template", "task")
)

#: Seconds that a model has to report its context.
CONTEXT_TIMEOUT: Final = 2.0


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model or a variant, with OpenAI's fields and Anthropic's."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["wherry"] = "wherry"
    type: Literal["model"] = "model"
    display_name: str
    created_at: datetime
    root: str | msgspec.UnsetType = msgspec.UNSET
    parent: str | msgspec.UnsetType = msgspec.UNSET
    #: The most tokens of a prompt and its answer, if the model reports it.
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    #: The routes that it serves: chat, completions, embeddings and so on.
    abilities: tuple[str, ...] = ()


class AbleModels:
    """The models of one server that can answer such requests."""

    def __init__(self, entry: HttpEntry) -> None:
        self.entry = entry
        self._runtime = entry.runtime
        self._created = int(time.time())
        #: As the models were at a generation: whether one has an ability, and which one of a name
        #: has. Not kept alive: an unloaded model must give its memory back.
        self._generation = -1
        self._served: dict[str, bool] = {}
        self._able: WeakValueDictionary[tuple[str | None, str], LoadedModel]
        #: The contexts that models have reported, while the models are loaded.
        self._contexts: WeakKeyDictionary[LoadedModel, int] = WeakKeyDictionary()

    def route(
        self,
        read: Reader[T],
        start: Start[T],
        operation: Operation,
        ability: str,
        form: ClientForm = OPENAI,
    ) -> Route:
        """A route that models with this ability answer; 404 while no model has it.
        `read` and `start` are as for `ClientRequest.read`."""

        def answer(exchange: Exchange) -> None:
            if self.serves(ability):
                ClientRequest(self.entry, exchange, form).read(read, start)
                return
            problem = (
                f"{exchange.request.path} is not served here: no model of this server is for"
                f" {ability} (of each: {NEEDS[ability]})"
            )
            fail(exchange, UnknownRoute(problem), form=form.error)

        operations = {"POST": operation}
        return Route({"POST": answer}, "inference", operations=operations, needs=(ability,))

    def serves(self, ability: str) -> bool:
        """Whether a model has this ability, or may have it when ready."""
        self._look_again()
        found = self._served.get(ability)
        if found is None:
            awaits = self._runtime.registry.awaits()
            found = self._served[ability] = awaits or bool(self.names(ability))
        return found

    def _look_again(self) -> None:
        """Forget what was found, if models were loaded or unloaded since."""
        generation = self._runtime.registry.generation
        if self._generation != generation:
            self._served, self._able = {}, WeakValueDictionary()
            # As read above: later changes are seen next time. Last: other threads may be here, too.
            self._generation = generation

    def names(self, ability: str | None = None) -> list[str]:
        return sorted({m.name for m in self._with(ability)})

    def listed(self) -> list[OpenAIModel]:
        """Those with any ability, then their variants. Blocks: may read files and query models."""
        models = sorted(self._with(None), key=lambda model: model.name)
        known = [(model, self._described(model)) for model in models]
        named = [
            one if name == m.name else replace(one, id=name, display_name=name, root=m.name)
            for m, one in known
            for name in _names_of(m)
        ]
        variants = [
            replace(one, id=name, display_name=name, root=name, parent=m.reported_name())
            for m, one in known
            for name in m.model.variants()
        ]
        return named + sorted(variants, key=lambda variant: variant.id)

    def one_listed(self, name: str) -> OpenAIModel:
        """The one of this name, or of this own name. UnknownModel. Blocks, as `listed`."""
        found = next((one for one in self.listed() if one.id == name), None)
        return found or self._described(self.named(name, variants=False))

    def _described(self, loaded: LoadedModel) -> OpenAIModel:
        return OpenAIModel(
            id=loaded.name,
            created=self._created,
            display_name=loaded.name,
            created_at=datetime.fromtimestamp(self._created, UTC),
            max_model_len=self._context(loaded),
            abilities=tuple(sorted(abilities(loaded))),
        )

    def _context(self, loaded: LoadedModel) -> int | msgspec.UnsetType:
        """The most tokens that a model takes. Queried once, by tokenizing a text."""
        if known := self._contexts.get(loaded) or getattr(loaded.model, "context_tokens", None):
            return int(known)
        if not _has_tokens(loaded):
            return msgspec.UNSET
        try:
            columns = loaded.row_columns((), {"prompt": "a", "task": "tokenize"})
            context_answer = next(
                self._runtime.calls.stream(loaded, columns, timeout=CONTEXT_TIMEOUT)
            )
            found = self._contexts[loaded] = int(
                context_answer.outputs["usage"][0]["context_tokens"]
            )
        except Exception:  # noqa: BLE001 - of any model: listed without its context
            return msgspec.UNSET
        return found

    def _with(self, ability: str | None) -> list[LoadedModel]:
        models = self._runtime.models()
        return [m for m in models if (ABLE[ability](m) if ability else abilities(m))]

    def named(self, name: str, *, variants: bool = True) -> LoadedModel:
        """The model of this name or served name, or one that may have this variant, with any
        abilities. UnknownModel."""
        try:
            return self._runtime.model(name)
        except ModelNotFound:
            if own := self._runtime.registry.served_names().get(name):
                return self._runtime.model(own)
            models = self._with(None) if variants else []
            if found := next((m for m in models if m.model.may_have_variant(name)), None):
                return found
            able = ", ".join(sorted(n for m in self._with(None) for n in _names_of(m)))
            raise UnknownModel(f"the model '{name}' does not exist; there are: {able}") from None

    def able(self, name: str | None, ability: str) -> LoadedModel:
        """The model of this name, or without one the only model that has the ability. UnknownModel,
        BadField."""
        self._look_again()
        if (found := self._able.get((name, ability))) is not None:
            return found
        able, loaded = self._able, self.named(self._only(ability) if name is None else name)
        if not ABLE[ability](loaded):
            raise UnknownModel(f"the model '{name}' does not support {ability}: {NEEDS[ability]}")
        if name in (None, loaded.name, *loaded.config.served_names):  # variants come and go
            able[name, ability] = loaded
        return loaded

    def _only(self, ability: str) -> str:
        """Return the only model that has this ability; BadField if there are more or none."""
        able = self.names(ability)
        if len(able) == 1:
            return able.pop()
        there = f"there are: {', '.join(able)}" if able else f"none supports {ability}"
        raise BadField("model", f"is missing; {there}")


def _names_of(loaded: LoadedModel) -> tuple[str, ...]:
    return loaded.config.served_names or (loaded.name,)


def abilities(loaded: LoadedModel) -> set[str]:
    """Return the parts of OpenAI's API that a model can answer, by its signature."""
    return {ability for ability, able in ABLE.items() if able(loaded)}


def _speaks(loaded: LoadedModel, by: str) -> bool:
    """Whether it makes text of an input of this name."""
    signature = loaded.signature
    return text_output(signature) is not None and signature.input(by) is not None


def _generates(loaded: LoadedModel, by: str) -> bool:
    needed = {spec.name for spec in loaded.signature.inputs if not spec.optional}
    return needed <= CHAT_INPUTS and _speaks(loaded, by)


def _has_tokens(loaded: LoadedModel) -> bool:
    return loaded.signature.output("token_ids") is not None and _speaks(loaded, "task")


#: Whether a model has an ability.
ABLE: Final[dict[str, Callable[[LoadedModel], bool]]] = {
    "chat": lambda loaded: _generates(loaded, "messages"),
    "completions": lambda loaded: _generates(loaded, "prompt"),
    "tokens": _has_tokens,
    "embeddings": lambda loaded: vector_fit(loaded.signature) is not None,
    "scores": lambda loaded: score_fit(loaded.signature) is not None,
    "transcriptions": lambda loaded: audio_fit(loaded.signature) is not None,
    "translations": lambda m: (fit := audio_fit(m.signature)) is not None and fit.translates,
}
