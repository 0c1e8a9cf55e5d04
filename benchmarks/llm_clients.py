"""Do other projects' clients work against a served language model, unchanged?

    CLIENTS/bin/python -P benchmarks/llm_clients.py URL MODEL

Runs with the Python of an environment that has some of openai, langchain-openai, litellm,
pydantic-ai-slim[openai] and instructor (their needs contradict each other's, so most often one
environment each), asks through each that is installed, and prints what worked. Nothing of wherry is
imported. Exits with the number of failures.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

QUESTION = "Bob is 3 years old."
SAID = [{"role": "user", "content": QUESTION}]
PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": PARAMETERS}}]
SHORT = {"max_tokens": 80, "temperature": 0}
#: What is tried through a client, and the call that does it.
Checks = Iterator[tuple[str, Callable[[], object]]]


def person() -> Any:
    """A pydantic model, which most clients take as the form of an answer."""
    pydantic = importlib.import_module("pydantic")
    name = (str, pydantic.Field(max_length=9))
    return pydantic.create_model("Person", name=name, age=(int, ...))


def of_openai(url: str, model: str) -> Checks:
    openai = importlib.import_module("openai")
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    asked = {"model": model, "messages": SAID, **SHORT}
    chats = client.chat.completions

    def helper() -> object:
        with chats.stream(**asked) as stream:
            return [event.type for event in stream][-1]

    def refused() -> object:
        try:
            chats.create(**{**asked, "temperature": -1})
        except openai.BadRequestError as error:
            return {"temperature": error.type}[error.param]
        raise AssertionError("it was taken")

    response = {"model": model, "input": QUESTION, "max_output_tokens": 16}
    yield "create", lambda: chats.create(**asked).choices[0].message.content
    yield "stream", lambda: len(list(chats.create(**asked, stream=True)))
    yield "stream helper", helper
    yield "parse", lambda: chats.parse(**asked, response_format=person()).choices[0].message.parsed
    yield "tool", lambda: chats.create(**asked, tools=TOOLS, tool_choice="required").choices[0]
    yield "raw response", lambda: chats.with_raw_response.create(**asked).request_id
    yield "refused", refused
    yield "completion", lambda: client.completions.create(model=model, prompt="One").choices[0].text
    yield "responses", lambda: client.responses.create(**response).output_text


def of_langchain_openai(url: str, model: str) -> Checks:
    langchain = importlib.import_module("langchain_openai")
    chat = langchain.ChatOpenAI(base_url=url, api_key="none", model=model, **SHORT)
    yield "invoke", lambda: chat.invoke(QUESTION).content
    yield "stream", lambda: len(list(chat.stream(QUESTION)))
    yield "batch", lambda: len(chat.batch([QUESTION] * 4))
    formed = chat.with_structured_output(person(), method="json_schema")
    yield "structured output", lambda: formed.invoke(QUESTION)
    bound = chat.bind_tools([person()], tool_choice="required")
    yield "tools", lambda: bound.invoke(QUESTION).tool_calls[0]


def of_litellm(url: str, model: str) -> Checks:
    litellm = importlib.import_module("litellm")
    for provider in ("openai", "hosted_vllm"):
        asked = {"model": f"{provider}/{model}", "api_base": url, "api_key": "none", **SHORT}
        ask = partial(litellm.completion, messages=SAID, **asked)
        yield f"{provider}: create", ask
        yield f"{provider}: stream", partial(_all, partial(ask, stream=True))
        yield f"{provider}: form", partial(ask, response_format=person())
        yield f"{provider}: tool", partial(ask, tools=TOOLS, tool_choice="required")


def _all(ask: Callable[[], Any]) -> int:
    return len(list(ask()))


def of_pydantic_ai(url: str, model: str) -> Checks:
    agents = importlib.import_module("pydantic_ai")
    models = importlib.import_module("pydantic_ai.models.openai")
    providers = importlib.import_module("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=url, api_key="none")
    for kind in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        for form in (str, agents.ToolOutput(person()), agents.NativeOutput(person())):
            agent = agents.Agent(kind(model, provider=provider), output_type=form)
            what = f"{kind.__name__}: {getattr(form, '__name__', type(form).__name__)}"
            yield what, partial(agent.run_sync, QUESTION, model_settings=SHORT)


def of_instructor(url: str, model: str) -> Checks:
    instructor, openai = (importlib.import_module(name) for name in ("instructor", "openai"))
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
        asked = {"model": model, "messages": SAID, "response_model": person(), **SHORT}
        yield mode.name, partial(client.create, **asked)


CLIENTS: dict[str, Callable[[str, str], Checks]] = {
    "openai": of_openai,
    "langchain-openai": of_langchain_openai,
    "litellm": of_litellm,
    "pydantic-ai-slim": of_pydantic_ai,
    "instructor": of_instructor,
}
MODULES = {"pydantic-ai-slim": "pydantic_ai"}


def main() -> int:
    url, model = sys.argv[1].rstrip("/") + "/v1", sys.argv[2]
    failures = 0
    for package, checks in CLIENTS.items():
        if importlib.util.find_spec(MODULES.get(package, package.replace("-", "_"))) is None:
            continue
        print(package, importlib.metadata.version(package))
        for what, check in checks(url, model):
            try:
                said = f"ok    {what}: {check()}"
            except Exception as error:  # noqa: BLE001 - of any client; told, and the next one is tried
                failures += 1
                said = f"FAIL  {what}: {type(error).__name__}: {error}"
            print("  " + " ".join(said.split())[:150])
    return failures


if __name__ == "__main__":
    sys.exit(main())
