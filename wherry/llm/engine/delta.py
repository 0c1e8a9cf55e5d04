"""What are the pieces of a generated answer, whatever engine produces them?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Delta:
    """The next piece of an answer. Its fields are read by index too, `delta["text"]`, as those
    of the dict that a client has.

    For example:

        whole = Delta.empty(0)
        for delta in runtime.stream("chat", prompt="Once"):
            whole.extend(Delta(**delta))
        print(whole.text, whole.finish_reason)
    """

    #: The index of the answer, below the request's `n`.
    index: int
    #: The text since the last piece; a character is never cut in two.
    text: str
    #: The tokens since the last piece, including tokens that have no text.
    token_ids: list[int]
    #: "" while the generation goes on; then "stop" (end of text or a stop condition) or "length".
    finish_reason: str
    #: One {"token", "id", "logprob", "bytes", "top": [...]} for each token if the request sets
    #: `logprobs`. With `echo` those of the prompt come first; the first token's logprob is None.
    logprobs: list[dict[str, Any]]
    #: {"prompt_tokens", "completion_tokens", "cached_tokens"} with the end of the last answer, and
    #: of a model that thinks "reasoning_tokens"; else {}.
    usage: dict[str, int]
    #: With the first piece of a request: "prompt_tokens", and what it asks to know of its prompt,
    #: "prompt_token_ids" and "prompt_logprobs" (for each token None or {"ID": {"logprob", "rank",
    #: "decoded_token"}}). With an answer's end: "stop_reason", the text or token that stopped it.
    details: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, field: str) -> Any:
        if field not in self.__slots__:
            raise KeyError(field)
        return getattr(self, field)

    def keys(self) -> tuple[str, ...]:
        """The names of the fields: `{**delta}` is a dict of them."""
        return tuple(self.__slots__)

    @classmethod
    def empty(cls, index: int) -> Delta:
        """An empty piece that `extend` adds to."""
        return cls(index, "", [], "", [], {})

    def extend(self, further: Delta) -> None:
        """Append the next piece of the same answer. `usage` stays as it is."""
        self.text += further.text
        self.token_ids.extend(further.token_ids)  # it may be an array
        self.logprobs += further.logprobs
        self.finish_reason = further.finish_reason
        self.details |= further.details
