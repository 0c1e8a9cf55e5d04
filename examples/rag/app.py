"""How does a language model answer from your own notes? The nearest ones go into its prompt.

wherry serve examples/rag/app.py            # in the checkout: examples/search finds
uvicorn examples.rag.page:app               # or with a page at http://127.0.0.1:8000/
curl -N 127.0.0.1:8000/rag -d '{"question": "I forgot my password"}'
"""

from collections.abc import AsyncIterator
from typing import TypedDict

import wherry
from examples.llm.app import chat as chat
from examples.search.app import Hit
from examples.search.app import search as search

#: A small model learns from examples what a larger one reads in an instruction.
EXAMPLES = (
    (
        "Dogs ride free of charge.",
        "What do I pay for my dog?",
        "Nothing: dogs ride free of charge.",
    ),
    ("Towels are at the desk.", "Where do I get a towel?", "Towels are at the desk."),
)


class Part(TypedDict):
    text: str
    sources: list[Hit]  # with the first part


@wherry.pipeline(route="/rag", examples=[{"question": "I forgot my password"}])
async def rag(question: str, top: int = 2) -> AsyncIterator[Part]:
    sources = await search.ainfer(query=question, top=top)
    yield {"text": "", "sources": sources}
    if not sources or sources[0]["score"] < 0.25:
        yield {"text": "The notes do not say.", "sources": []}
        return
    messages = [message for example in EXAMPLES for message in turns(*example)]
    messages += turns(" ".join(hit["text"] for hit in sources), question)
    options = {"temperature": 0, "max_tokens": 60}
    async for delta in chat.astream(messages=messages, parameters=options):
        yield {"text": delta["text"], "sources": []}


def turns(notes: str, question: str, *answer: str) -> list[dict[str, str]]:
    asked = {"role": "user", "content": f"Text: {notes}\nQuestion: {question}"}
    return [asked, *({"role": "assistant", "content": text} for text in answer)]
