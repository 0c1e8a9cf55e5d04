"""What does a span say of a generation, by OpenTelemetry's conventions for generative AI?

Numbers and names: what was asked and answered is for the two who talk.
"""

from __future__ import annotations

from typing import Any, Final

from wherry.llm.openai.answers import OpenAIAnswer

_OPERATIONS: Final = {
    "chat.completion": "chat", "response": "chat", "message": "chat",
    "text_completion": "text_completion", "embeddings": "embeddings",
}  # fmt: skip
#: Fields of requests, by what the conventions call them.
_FIELDS: Final = {
    "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
    "seed": "seed", "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty", "n": "choice.count",
}  # fmt: skip


def request_attributes(request: object, kind: str) -> dict[str, Any]:
    """The attributes of a request, whose answer is called `kind`."""
    attributes: dict[str, Any] = {"gen_ai.provider.name": "wherry"}
    if (operation := _OPERATIONS.get(kind)) is not None:
        attributes["gen_ai.operation.name"] = operation
    if model := getattr(request, "model", ""):
        attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = model
    for name, called in _FIELDS.items():
        value = getattr(request, name, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{called}"] = value
    return attributes


def answered_with(answer: OpenAIAnswer) -> dict[str, Any]:
    """The attributes of an answer that is whole."""
    attributes: dict[str, Any] = {"gen_ai.response.id": answer.id}
    usage, choices = answer.usage, answer.choices
    if usage.prompt_tokens or usage.completion_tokens:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    reasons = [choice["finish_reason"] for choice in choices.values() if "finish_reason" in choice]
    if reasons:
        attributes["gen_ai.response.finish_reasons"] = [reason or "" for reason in reasons]
    return attributes
