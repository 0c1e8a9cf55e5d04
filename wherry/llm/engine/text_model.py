"""What do all models of text have in common, whatever engine runs them?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wherry.core.api import InvalidRequest, ModelSettings, PromptTooLong, Signature, StepModel
from wherry.llm.engine.adapters import AdapterFolders
from wherry.llm.engine.choice import hub_names
from wherry.llm.engine.delta import Delta
from wherry.llm.engine.prompt import Prompt
from wherry.llm.engine.sampling import Parameters, Sampling, check_tokens, tokens_to_keep
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.formats.answer_text import ModelStyle

_PLAIN: Final = Sampling()


class TextModel(StepModel, ABC):
    """Takes a text, messages or tokens, and answers in `Delta`s. An engine reads the prompt and
    begins the request in `_begin`; it sets the attributes here when it is loaded."""

    examples = ({"prompt": "Hello", "parameters": {"max_tokens": 4, "temperature": 0.0}},)
    #: The engine's name, if it is not wherry's, and the parameters that it does not have.
    engine_name: ClassVar[str] = ""
    unsupported: ClassVar[tuple[str, ...]] = ()
    #: Whether requests can turn texts into tokens, and tokens into texts.
    tokenizes: ClassVar[bool] = True

    #: Turns text into tokens.
    tokenizer: Tokenizer
    #: How the model writes calls and thoughts.
    style: ModelStyle
    #: Sampling parameters for requests that do not set them.
    defaults: Mapping[str, Any]
    #: The number of tokens that the model knows.
    vocabulary: int
    #: Maximum of prompt and generated tokens.
    context_tokens: int

    def __init__(self, source: str | Path, most_active: int, settings: ModelSettings) -> None:
        self.source = str(source)
        self.adapters = AdapterFolders({})
        file = Path(self.source).name
        by = f" by {self.engine_name}" if self.engine_name else ""
        name = settings.get("name", "")
        self._settings = {
            "served_names": hub_names(self.source, name),
            "max_batch_size": most_active,
            "description": f"Text generation with {file}{by}",
            **settings,
            "name": name or file.removesuffix(".gguf").replace(" ", "-") or "llm",
        }

    @property
    def _name(self) -> str:
        return str(self._settings["name"])

    def signature(self, name: str = "") -> Signature:
        found = super().signature(name)
        kept = tuple(one for one in found.inputs if self.tokenizes or one.name != "task")
        return replace(found, inputs=kept)

    if TYPE_CHECKING:
        # `parameters` may be a dict, which an annotation of an input cannot express.
        def stream(self, *row: Any, **inputs: Any) -> Iterator[Delta]: ...
        def astream(self, *row: Any, **inputs: Any) -> AsyncIterator[Delta]: ...

    def start(
        self,
        prompt: str = "",
        messages: Sequence[dict[str, Any]] = (),
        token_ids: Sequence[int] = (),
        tools: Sequence[dict[str, Any]] = (),
        template: dict[str, Any] = {},  # noqa: B006 - never changed
        parameters: Parameters = Parameters(),  # noqa: B008 - frozen
        stream: bool = True,
        task: str = "generate",
    ) -> Any:
        """Add a request."""
        if task not in ("generate", "tokenize", "detokenize"):
            problem = f"task must be 'generate', 'tokenize' or 'detokenize', not {task[:40]!r}"
            raise self._refused(problem, "task")
        if task == "detokenize":
            return self._answered(self._text_of(token_ids))
        sampling = parameters.resolved(self.defaults)
        if task == "generate":
            sampling.checked(self._name, self.vocabulary)
            for field in self.unsupported:
                if getattr(sampling, field) != getattr(_PLAIN, field):
                    problem = f"{field} is not supported by {self.engine_name}'s adapter"
                    raise self._refused(problem, field)
        unread = Prompt(
            prompt=prompt,
            messages=messages,
            token_ids=token_ids,
            tools=tools,
            template=template,
            parameters=parameters,
            adapter=self.adapters.found(self._name, parameters.adapter),
            truncate=tokens_to_keep(self._name, parameters, self.context_tokens),
            may_be_empty=task == "tokenize",
        )
        return self._begin(unread, sampling, stream=stream, only_count=task == "tokenize")

    @abstractmethod
    def _begin(self, unread: Prompt, sampling: Sampling, *, stream: bool, only_count: bool) -> Any:
        """Generate the answers to a prompt, or count its tokens. Returns the request's state."""

    def _answered(self, answer: Delta) -> Any:
        """The state of a request that has its answer already. Only where it `tokenizes`."""
        raise NotImplementedError

    def cost(self, *row: Any) -> float:
        """Estimate the length of the prompt before it is tokenized."""
        prompt, messages, token_ids = row[:3]
        if self.tokenizes and row[-1] not in (None, "generate"):
            return 0.0
        contents = [m.get("content") for m in messages or () if isinstance(m, Mapping)]
        characters = sum(len(content) for content in contents if isinstance(content, str | list))
        return 1.0 + len(prompt or "") + 4 * len(token_ids or ()) + characters

    def _refused(self, problem: str, field: str | None = None) -> InvalidRequest:
        return InvalidRequest(f"model {self._name!r}: {problem}", field=field)

    def _text_of(self, tokens: Sequence[int]) -> Delta:
        check_tokens(self._name, tokens, self.vocabulary)
        if len(tokens) > (most := self.context_tokens):
            raise PromptTooLong(
                f"model {self._name!r}: {len(tokens)} tokens: this model's maximum context length"
                f" is {most} tokens",
                field="prompt",
            )
        return Delta(0, self.tokenizer.decode(tokens, skip_special=False), [], "stop", [], {})
