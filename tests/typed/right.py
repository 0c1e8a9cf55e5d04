"""Right programs: neither checker has anything to say of a line here."""

import io
from pathlib import Path
from typing import assert_type

import numpy as np

import wherry
from tests.typed.models import (
    Countdown,
    Embedder,
    Label,
    chain,
    classify,
    length,
    named,
    one_row,
    pair,
    pieces,
    ranked,
    search,
    soon,
    width,
    words,
)
from wherry.llm import LLM

# Called directly, a model is its function.
assert_type(classify(["a"]), list[Label])
assert_type(ranked(["a"], k=[1]), list[str])

# A row in, a row out.
assert_type(classify.infer("a"), Label)
assert_type(classify.infer(text="a", timeout=1.0, priority=2), Label)
assert_type(ranked.infer("a"), str)
assert_type(ranked.infer("a", 3), str)
assert_type(ranked.infer(text="a", k=3), str)
assert_type(search.infer({"text": "a", "top": 1}), list[str])
assert_type(named.infer(Label("a")), str)
assert_type(soon.infer("a"), int)
assert_type(one_row.infer("a"), Label)
assert_type(one_row.infer(text="a", k=2), Label)
assert_type(one_row.infer(text="a", timeout=1.0), Label)
assert_type(chain.infer("a", upper=True), str)
assert_type(Embedder().infer("a"), float)
pair.infer("a").left.upper()

# Arrays and files in any form.
length.infer([1.0, 2.0])
length.infer(x=np.ones(2, np.float32))
assert_type(width.infer(Path("a.png")), int)
assert_type(width.infer(image=io.BytesIO(b"")), int)

# Many rows.
for label in classify.map(["a", "b"]):
    assert_type(label, Label)
for label in classify.map([{"text": "a"}]):
    assert_type(label, Label)
for text in ranked.map([{"text": "a", "k": 1}]):
    assert_type(text, str)

# Streams.
for piece in pieces.stream("a"):
    assert_type(piece, str)
for number in Countdown().stream(n=3):
    assert_type(number, int)


async def in_asyncio() -> None:
    assert_type(await classify.ainfer("a"), Label)
    assert_type(await chain.ainfer("a"), str)
    assert_type(await wherry.gather(classify.ainfer(one) for one in "ab"), list[Label])
    async for word in words.astream("a b"):
        assert_type(word, str)


# Settings.
overrides: dict[str, wherry.ModelSettings] = {"classify": {"max_queue_size": 10}}
runtime = wherry.Runtime(classify, Embedder(), isolation="process", overrides=overrides)
runtime.load(ranked, max_batch_size=4, device="cpu", memory="2GiB", resident="always")
wherry.Server(classify, port=0, grpc_port=0, api_keys=["secret"], ssl_certfile=Path("a.pem"))
LLM("model", name="chat", max_running=4, max_queue_size=10)


def any_model(model: wherry.Model) -> None:
    model.infer(1, 2, 3, 4, five=5)
