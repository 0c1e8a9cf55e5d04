"""What does a body of OpenAI's routes cost to read? In proportion to its bytes."""

import contextlib

import pytest
from hypothesis import settings

from tests.costs import assert_linear
from tests.unit.server.v2.http.test_costs import UNITS
from wherry.core.values.errors import WherryError
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.completions import CompletionRequest
from wherry.llm.openai.reading import decoded

pytestmark = pytest.mark.slow

FRAMES = {
    "body": (b"", b""),
    "a member": (b'{"model":"m","x":', b"}"),
    "messages": (b'{"model":"m","messages":[', b"]}"),
    "content": (b'{"model":"m","messages":[{"role":"user","content":[', b"]}]}"),
    "text": (b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}'),
    "tools": (b'{"model":"m","messages":[],"tools":[', b"]}"),
    "schema": (b'{"model":"m","messages":[],"response_format":{"json_schema":', b"}}"),
    "prompts": (b'{"model":"m","prompt":[', b"]}"),
    "stop": (b'{"model":"m","prompt":"a","messages":[],"stop":[', b"]}"),
    "biases": (b'{"model":"m","prompt":"a","messages":[],"logit_bias":{', b"}}"),
    "a number": (b'{"model":"m","prompt":"a","messages":[],"seed":1', b"}"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("frame", FRAMES)
def test_twice_the_body_costs_twice_as_much(
    frame: str, kind: type[ChatRequest] | type[CompletionRequest]
) -> None:
    before, behind = FRAMES[frame]
    step = max(1, 100 // settings().max_examples)  # `make test` has each unit in a few frames

    def read(body: bytes) -> None:
        with contextlib.suppress(WherryError):
            decoded(body, kind)

    for unit in UNITS[[*FRAMES].index(frame) % step :: step]:

        def make(size: int, unit: bytes = unit) -> bytes:
            return before + unit * size + behind

        assert_linear(read, make, largest=2**17)
