"""Which models can answer what the routes of language models ask, by their inputs and outputs?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wherry.frontends.openai.errors import BadField, UnknownModel
from wherry.frontends.openai.fits import hearing_fit, score_fit, vector_fit
from wherry.models.model import VariantStore
from wherry.models.signature import Signature
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.runtime import Runtime
from wherry.values.datatypes import Form
from wherry.values.errors import ModelNotFound

NEEDS: Final = {
    "chat": "it has no input 'messages' and text as its output",
    "completions": "it has no input 'prompt' and text as its output",
    "embeddings": (
        "it does not make one vector of floats of one text or list of tokens, its only required"
        " input"
    ),
    "scores": "it does not make one float of two texts, its only required inputs",
    "transcriptions": "it does not make text of audio, its only required input",
    "translations": "it does not make text of audio, its only required input, or has no 'task'",
    "tokens": "it has no input 'task'",
}


#: Inputs that a chat or a completion may give a model; one that needs more is for neither.
GIVEN: Final = frozenset(
    ("messages", "prompt", "token_ids", "parameters", "stream", "tools", "template", "task")
)


class AbleModels:
    """The models of one server that can answer such requests."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def names(self, ability: str | None = None) -> list[str]:
        """Those with this ability; None: with any."""
        return sorted({m.name for m in self._with(ability)})

    def listed(self) -> list[tuple[str, str]]:
        """Those with any ability, then their variants: names, and the models' own. May read
        files."""
        models = self._with(None)
        variants = [(name, m.name) for m in models for name in m.model.variants()]
        return sorted((m.name, m.name) for m in models) + sorted(variants)

    def _with(self, ability: str | None) -> list[LoadedModel]:
        models = self._runtime.models()
        return [m for m in models if (a := abilities(m)) and ability in (None, *a)]

    def named(self, name: str, *, variants: bool = True) -> LoadedModel:
        """The model of this name, or one that may have this variant, whatever it can.
        UnknownModel."""
        try:
            return self._runtime.model(name)
        except ModelNotFound:
            models = self._with(None) if variants else []
            if found := next((m for m in models if m.model.may_have_variant(name)), None):
                return found
            able = ", ".join(self.names())
            raise UnknownModel(f"the model '{name}' does not exist; there are: {able}") from None

    def able(self, name: str | None, ability: str) -> LoadedModel:
        """The model of this name, or without one the only model that has the ability."""
        loaded = self.named(self._only(ability) if name is None else name)
        if ability not in abilities(loaded):
            raise UnknownModel(f"the model '{name}' is none for {ability}: {NEEDS[ability]}")
        return loaded

    def store(self, name: str | None) -> VariantStore:
        """Where the variants of the model of this name are, or without one those of the only model
        that takes any. BadField if it takes none."""
        taking = {m.name: s for m in self._runtime.models() if (s := _store(m))}
        names = [*taking] if name is None else [n for n in taking if n == name]
        if len(names) != 1:
            there = ", ".join(sorted(taking)) or "none: start one with adapter_folder=FOLDER"
            raise BadField(
                "base_model_name",
                f"must be one of the models that take adapters; there are {there}",
            )
        return taking[names[0]]

    def _only(self, ability: str) -> str:
        """Return the only model that has this ability; BadField if there are more or none."""
        able = self.names(ability)
        if len(able) == 1:
            return able.pop()
        raise BadField("model", f"is missing; there are: {', '.join(able) or 'none'}")


def abilities(loaded: LoadedModel) -> set[str]:
    """Return the parts of OpenAI's API that a model can answer, by its signature."""
    signature = loaded.signature
    inputs = {spec.name for spec in signature.inputs}
    texts = [spec for spec in signature.outputs if spec.form is Form.TEXT]
    able: set[str] = set()
    if texts and (len(signature.outputs) == 1 or signature.output("text")):
        by_input = {"messages": "chat", "prompt": "completions"}
        if {spec.name for spec in signature.inputs if not spec.optional} <= GIVEN:
            able = {ability for name, ability in by_input.items() if name in inputs}
        if "task" in inputs and signature.output("token_ids"):
            able.add("tokens")
    fits: dict[str, Callable[[Signature], object]] = {"embeddings": vector_fit, "scores": score_fit}
    able |= {ability for ability, fit in fits.items() if fit(signature) is not None}
    if (hears := hearing_fit(signature)) is not None:
        able |= {"transcriptions", "translations"} if hears.translates else {"transcriptions"}
    if _store(loaded):
        able.add("adapters")
    return able


def _store(loaded: LoadedModel) -> VariantStore | None:
    """Where a model's variants may be added, if they may."""
    store = loaded.model.variant_store
    return store if store is not None and store.takes_more else None
