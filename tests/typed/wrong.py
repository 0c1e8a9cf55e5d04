"""Wrong programs: both checkers refuse the lines that have a comment, and no others.

The comment names mypy's error. A line that it would accept is an unused `type: ignore`, for mypy
and, by pyrightconfig.json, for pyright, too.
"""

import wherry
from tests.typed.models import (
    Countdown,
    Embedder,
    Label,
    chain,
    classify,
    named,
    one_row,
    pieces,
    ranked,
    search,
    words,
)
from wherry.llm import LLM


# A misspelt setting, and a value of a wrong type.
@wherry.model(max_batchsize=8)  # type: ignore[call-overload, untyped-decorator]
def misspelt(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size="8")  # type: ignore[call-overload, untyped-decorator]
def mistyped(text: list[str]) -> list[str]:
    return text


@wherry.pipeline(request_timout=1.0)  # type: ignore[call-overload, untyped-decorator]
async def late(text: str) -> str:
    return text


wherry.model(instances="2")(classify.function)  # type: ignore[arg-type]
wherry.model(instances=[2])(classify.function)  # type: ignore[list-item]
wherry.model(isolation="proces")(classify.function)  # type: ignore[call-overload]
wherry.model(examples={"text": "a"})(classify.function)  # type: ignore[call-overload]


class Wrong(wherry.Model):
    max_batch_size = "64"  # type: ignore[assignment]

    def execute(self, text: list[str]) -> list[str]:
        return text


wherry.Runtime(classify, isolaton="process")  # type: ignore[call-arg]
wherry.Runtime(classify, isolation="proces")  # type: ignore[arg-type]
wherry.Runtime(classify, cache_bytes="1GiB")  # type: ignore[arg-type]
wherry.Runtime(classify, overrides={"classify": {"max_batchsize": 8}})  # type: ignore[typeddict-unknown-key]
wherry.Runtime(classify).load(ranked, max_queue=1)  # type: ignore[call-arg]
classify.config(max_queue_size="10")  # type: ignore[arg-type]
wherry.Server(classify, prot=8000)  # type: ignore[call-arg]
wherry.Server(classify, max_in_flight="8")  # type: ignore[arg-type]
LLM("model", max_runing=4)  # type: ignore[call-arg]
LLM("model", max_batch_size="4")  # type: ignore[arg-type]
wherry.InstanceGroup(count="2")  # type: ignore[arg-type]

# Inputs: of one row their names and types, of columns their types.
classify.infer(1)  # type: ignore[arg-type]
classify.infer(text=1)  # type: ignore[arg-type]
classify.infer(["a"])  # type: ignore[arg-type]
classify.infer(text=None)  # type: ignore[arg-type]
classify.infer("a", "b")  # type: ignore[call-arg]
classify.infer("a", timout=1.0)  # type: ignore[arg-type]
classify.infer("a", timeout="1")  # type: ignore[arg-type]
ranked.infer("a", "b")  # type: ignore[arg-type]
ranked.infer(1, 2)  # type: ignore[arg-type]
ranked.infer(text="a", k=1.5)  # type: ignore[arg-type]
search.infer({"text": "a", "tpo": 1})  # type: ignore[typeddict-item, typeddict-unknown-key]
named.infer("a")  # type: ignore[arg-type]
named.infer(Label(nam="a"))  # type: ignore[call-arg]
one_row.infer(txt="a")  # type: ignore[call-overload]
one_row.infer(text=1)  # type: ignore[call-overload]
one_row.infer("a", k="2")  # type: ignore[call-overload]
one_row.infer()  # type: ignore[call-overload]
chain.infer(txt="a")  # type: ignore[call-overload]
chain.infer("a", uper=True)  # type: ignore[call-overload]
Embedder().infer(text=1)  # type: ignore[arg-type]
Countdown().stream(m=3)  # type: ignore[call-overload]
Countdown().stream(n="3")  # type: ignore[call-overload]
classify.map([1, 2])  # type: ignore[list-item]
classify.map("a", version=1.5)  # type: ignore[arg-type]
classify(text="a")  # type: ignore[arg-type]
classify(txt=["a"])  # type: ignore[call-arg]

# Results.
number: int = classify.infer("a")  # type: ignore[assignment]
classify.infer("a").nam  # type: ignore[attr-defined]
one_row.infer("a").nam  # type: ignore[attr-defined]
Embedder().infer("a").upper()  # type: ignore[attr-defined]
for label in classify.map(["a"]):
    label.upper()  # type: ignore[attr-defined]
for piece in pieces.stream("a"):
    piece + 1  # type: ignore[operator]
for left in Countdown().stream(n=3):
    left.upper()  # type: ignore[attr-defined]
classify.stream("a")  # type: ignore[arg-type]


async def in_asyncio() -> None:
    classify.ainfer("a").name  # type: ignore[attr-defined]
    (await classify.ainfer("a")).nam  # type: ignore[attr-defined]
    await chain.ainfer(1)  # type: ignore[call-overload]
    await classify.ainfer(text=1)  # type: ignore[arg-type]
    (await chain.ainfer("a")).name  # type: ignore[attr-defined]
    async for word in words.astream("a b"):
        word + 1  # type: ignore[operator]


@wherry.pipeline
async def wrongly(text: str) -> str:
    label = classify.ainfer(text)
    name: str = await classify.ainfer(text)  # type: ignore[assignment]
    await classify.ainfer(len(text))  # type: ignore[arg-type]
    await chain.ainfer(text, upper=1.5)  # type: ignore[call-overload]
    return label.name + name  # type: ignore[attr-defined, no-any-return]
