"""OpenAI's own client, and vLLM's routes beside it, against the language model engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

import wherry
from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_lora import adapter as write_adapter
from tests.ways import WAYS, served
from wherry.llm import LLM
from wherry.llm.engine.tokenizer import Tokenizer

pytestmark = pytest.mark.timeout(180)

#: Seconds for an answer; httpx has 5.
TIMEOUT = 120

CONTEXT = "Question: is it so? Answer:"
CHOICES = (" yes word3", " no", " word7 word8 é")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module", params=WAYS)
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[wherry.Server]:
    @wherry.model(max_batch_size=8)
    def shout(prompt: list[str]) -> list[str]:
        return [text.upper() for text in prompt]

    def models() -> Sequence[Any]:
        # Prompts go in chunks of 16 tokens, and their blocks are found again.
        chat = LLM(
            folder, name="chat", cache_gb=0.01, max_step_tokens=16, max_running=8, threads=1,
            isolation="thread",
        )  # fmt: skip
        return chat, shout

    def warm(runtime: wherry.Runtime) -> None:
        # The thread that reads grammars starts with the first one, and is the server's.
        list(runtime.stream("chat", prompt="?", parameters={"constraint": {"choice": ["!"]}}))

    with served(request.param, models, warm) as server:
        yield server


@pytest.fixture
def client(server: wherry.Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(folder: Path, tokenizer: Tokenizer) -> list[tuple[float, bool]]:
    """By transformers: how probable each choice is after the context, and is it the likeliest?"""
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for choice in CHOICES:
        context, whole = (tokenizer.encode(text) for text in (CONTEXT, CONTEXT + choice))
        with torch.inference_mode():
            logprobs = net(torch.tensor([whole])).logits[0].log_softmax(-1)
        told = range(len(context), len(whole))
        each = [float(logprobs[place - 1, whole[place]]) for place in told]
        greedy = all(int(logprobs[place - 1].argmax()) == whole[place] for place in told)
        found.append((sum(each), greedy))
    return found


def read(answer: dict[str, Any], context_tokens: int) -> list[tuple[float, bool]]:
    """What lm-evaluation-harness 0.4.13 makes of an answer: its last token was generated, and a
    token is the likeliest if its number is the greatest, exactly."""
    found = []
    for choice in sorted(answer["choices"], key=lambda choice: int(choice["index"])):
        logprobs = choice["logprobs"]
        told = logprobs["token_logprobs"][context_tokens:-1]
        tops = logprobs["top_logprobs"][context_tokens:-1]
        greedy = all(own == max(top.values()) for own, top in zip(told, tops, strict=True))
        found.append((sum(told), greedy))
    return found


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_lm_evaluation_harness_reads_how_probable_choices_are(
    server: wherry.Server,
    tokenizer: Tokenizer,
    expected: list[tuple[float, bool]],
    as_tokens: bool,
    at_once: bool,
) -> None:
    prompts: list[Any] = [CONTEXT + choice for choice in CHOICES]
    if as_tokens:
        prompts = [tokenizer.encode(prompt) for prompt in prompts]
    body = {
        "model": "chat", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
        "echo": True,
    }  # fmt: skip
    found = []
    for prompt in [prompts] if at_once else [[prompt] for prompt in prompts]:
        answer = httpx.post(
            f"{server.url}/v1/completions", json={**body, "prompt": prompt}, timeout=TIMEOUT
        )
        assert answer.status_code == 200, answer.text
        found += read(answer.json(), len(tokenizer.encode(CONTEXT)))
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [told for told, _ in found] == pytest.approx([told for told, _ in expected], abs=1e-4)


def test_the_models_own_choice_is_the_likeliest_one(
    server: wherry.Server, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    context = tokenizer.encode(CONTEXT)
    wish = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, "logprobs": 0}
    deltas = [
        # Of a model in this process it is the object that the model returns.
        delta if isinstance(delta, dict) else asdict(delta)
        for delta in server.runtime.stream("chat", token_ids=context, parameters=wish)
    ]
    chosen = [int(token) for delta in deltas for token in delta["token_ids"]]
    own = sum(said["logprob"] for delta in deltas for said in delta["logprobs"])
    answer = client.completions.with_raw_response.create(
        model="chat", prompt=[[*context, *chosen]], max_tokens=1, temperature=0, logprobs=1,
        echo=True,
    ).http_response.json()  # fmt: skip
    ((told, greedy),) = read(answer, len(context))
    assert greedy
    assert told == pytest.approx(own, abs=1e-4)


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_alone_is_its_text_and_its_numbers(client: openai.OpenAI, stream: bool) -> None:
    text = "Ça va, word1?"
    fields: dict[str, Any] = {
        "model": "chat", "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 2
    }  # fmt: skip
    if stream:
        (chunk,) = client.completions.create(**fields, stream=True)
        (choice,) = chunk.choices
    else:
        answer = client.completions.create(**fields)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 0
        (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (text, "length")
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset == [0, 0, *range(1, 7), 12]
    assert logprobs.tokens[-2:] == [" word1", "?"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(number < 0 for number in logprobs.token_logprobs[1:])
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert all(1 <= len(top) <= 3 for top in logprobs.top_logprobs[1:])


def test_tokens_whose_text_is_held_back_have_their_places_in_a_stream(
    client: openai.OpenAI,
) -> None:
    fields: dict[str, Any] = {
        "model": "chat", "prompt": "Hi", "temperature": 0, "max_tokens": 12, "logprobs": 1,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    (choice,) = client.completions.create(**fields).choices
    fields["stop"] = [letter + "never" for letter in set(choice.text)]  # holds each piece back
    (whole,) = client.completions.create(**fields).choices
    assert whole.logprobs is not None
    streamed: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "text_offset": []}
    for chunk in client.completions.create(stream=True, **fields):
        if (logprobs := chunk.choices[0].logprobs) is not None:
            for name, values in streamed.items():
                values += getattr(logprobs, name)
    assert streamed == {name: getattr(whole.logprobs, name) for name in streamed}


def test_a_stream_begins_with_its_prompt(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    fields: dict[str, Any] = {
        "model": "chat", "temperature": 0, "max_tokens": 5, "echo": True, "logprobs": 1,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    prompts = [tokenizer.encode(text) for text in ("One two", "Three")]
    whole = client.completions.create(prompt=prompts, **fields)
    texts, told = ["", ""], [list[Any](), list[Any]()]
    for chunk in client.completions.create(prompt=prompts, stream=True, **fields):
        (choice,) = chunk.choices
        if choice.logprobs is not None:
            assert choice.logprobs.text_offset is not None
            assert choice.logprobs.text_offset[0] == len(texts[choice.index])
            told[choice.index] += choice.logprobs.token_logprobs or []
        texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert texts[0].startswith("One two")
    for choice, streamed in zip(whole.choices, told, strict=True):
        assert choice.logprobs is not None
        first, *rest = choice.logprobs.token_logprobs or []
        assert first is streamed.pop(0) is None
        assert rest == pytest.approx(streamed, abs=1e-4)  # who shared a step with it may differ


def test_what_cannot_be_echoed_is_refused_by_name(client: openai.OpenAI) -> None:
    for wrong, field in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"logprobs": 21, "echo": True}, "logprobs"),
        ({"prompt": [[1, 999]], "echo": True}, "prompt"),
        ({"prompt": [[]], "echo": True}, "prompt"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(**{"model": "chat", "prompt": "Hi", **wrong})  # type: ignore[call-overload]
        assert error.value.param == field
    with pytest.raises(openai.BadRequestError, match="the model 'shout' does not support it"):
        client.completions.create(model="shout", prompt="Hi", echo=True, logprobs=1)


# /v1/responses

CITY = {"enum": ["Rome", "Oslo"]}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": CITY}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip


def test_a_response_may_be_of_a_form_or_a_call(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    told = client.responses.create(
        model="chat", input="Where?", text=form, temperature=0, max_output_tokens=100
    )
    assert told.status == "completed"
    assert json.loads(told.output_text) in CITY["enum"]
    wish: dict[str, Any] = {
        "model": "chat", "input": "Where?", "tools": [WEATHER], "tool_choice": "required",
        "temperature": 0, "max_output_tokens": 150, "extra_body": {"store": False},
    }  # fmt: skip
    (call,) = client.responses.create(**wish).output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in CITY["enum"]
    *_, last = client.responses.create(**wish, stream=True)
    assert last.type == "response.completed"
    (streamed,) = last.response.output
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments


def test_a_forced_call_leaves_out_of_the_schema_what_no_grammar_can_follow_and_names_it(
    client: openai.OpenAI,
) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "to": {"type": "string", "format": "uri-reference", "maxLength": 2},
            "n": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "maxItems": 1},
        },
        "required": ["to", "n"],
    }
    function: Any = {"name": "go", "parameters": parameters}
    tools: Any = [{"type": "function", "function": function}]
    choices: Any = ("required", {"type": "function", "function": {"name": "go"}})
    for choice in choices:
        raw = client.chat.completions.with_raw_response.create(
            model="chat", messages=[{"role": "user", "content": "Hi"}], tools=tools,
            tool_choice=choice, parallel_tool_calls=False, max_tokens=200, seed=1,
        )  # fmt: skip
        assert sorted(raw.headers["x-wherry-ignored"].split(", ")) == [
            "tools[0].function.parameters.properties.n.uniqueItems",
            "tools[0].function.parameters.properties.to.format",
        ]
        calls: Any = raw.parse().choices[0].message.tool_calls
        (call,) = calls
        assert json.loads(call.function.arguments).keys() == {"to", "n"}
    flat: Any = [{"type": "function", "name": "go", "parameters": parameters}]
    response = client.responses.with_raw_response.create(
        model="chat", input="Hi", tools=flat, tool_choice="required", max_output_tokens=4
    )
    assert "tools[0].parameters.properties.to.format" in response.headers["x-wherry-ignored"]


def test_a_conversation_goes_on_with_what_a_response_has_said(
    client: openai.OpenAI, server: wherry.Server
) -> None:
    said = client.responses.create(model="chat", input="Hi", temperature=0, max_output_tokens=4)
    items: list[Any] = [
        {"role": "user", "content": "Hi"},
        *[item.to_dict() for item in said.output],
        {"role": "user", "content": "And?"},
    ]
    more = client.responses.create(model="chat", input=items, temperature=0, max_output_tokens=4)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": said.output_text},
        {"role": "user", "content": "And?"},
    ]
    _, counted = post(server, "tokenize", messages=messages)
    assert more.usage is not None
    assert more.usage.input_tokens == counted["count"]


@pytest.mark.parametrize("server", [WAYS[0], *WAYS[2:]], indirect=True)
def test_a_conversation_goes_on_with_a_response_that_is_kept(
    client: openai.OpenAI, server: wherry.Server
) -> None:
    said = client.responses.create(model="chat", input="Hi", temperature=0, max_output_tokens=4)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": said.output_text},
        {"role": "user", "content": "And?"},
    ]
    _, counted = post(server, "tokenize", messages=messages)
    kept: dict[str, Any] = {"model": "chat", "input": "And?", "previous_response_id": said.id}
    same = client.responses.create(**kept, temperature=0, max_output_tokens=4)
    assert same.usage is not None
    assert same.usage.input_tokens == counted["count"]
    assert client.responses.retrieve(said.id) == said
    client.responses.delete(said.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(said.id)


@pytest.mark.parametrize("server", WAYS[1:2], indirect=True)
def test_behind_fronts_what_refers_to_a_kept_response_is_refused_with_the_reason(
    client: openai.OpenAI, server: wherry.Server
) -> None:
    said = client.responses.create(model="chat", input="Hi", temperature=0, max_output_tokens=4)
    reference: Any = [{"type": "item_reference", "id": said.output[0].id}]
    not_kept = "responses are not kept here .*--fronts"
    # Each front has its own connections: all of them refuse, whichever made the response.
    for _ in range(8):
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as other:
            for more in ({"input": "And?", "previous_response_id": said.id}, {"input": reference}):
                with pytest.raises(openai.BadRequestError, match=not_kept):
                    other.responses.create(model="chat", max_output_tokens=4, **more)
            for ask in (other.responses.retrieve, other.responses.delete):
                with pytest.raises(openai.NotFoundError, match=r"keeps no responses .*--fronts"):
                    ask(said.id)


# vLLM's routes for a model's tokenizer


def post(server: wherry.Server, path: str, **body: Any) -> tuple[int, Any]:
    answer = httpx.post(f"{server.url}/{path}", json=body, timeout=TIMEOUT)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("named", [{"model": "chat"}, {}])
def test_a_text_becomes_tokens_and_they_become_the_text(
    server: wherry.Server, tokenizer: Tokenizer, named: dict[str, str]
) -> None:
    text = "Hällo word5<|end|> 🐍"
    status, found = post(server, "tokenize", prompt=text, add_special_tokens=False, **named)
    tokens = tokenizer.encode(text, special=False)
    assert (status, found) == (
        200,
        {"count": len(tokens), "max_model_len": 256, "tokens": tokens, "token_strs": None},
    )
    assert post(server, "detokenize", tokens=tokens, **named) == (200, {"prompt": text})
    assert post(server, "tokenize", prompt="", **named)[1]["tokens"] == []
    assert post(server, "detokenize", tokens=[], **named) == (200, {"prompt": ""})


def test_messages_become_the_tokens_that_a_chat_would_have(
    server: wherry.Server, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    chat = client.chat.completions.create(model="chat", messages=messages, max_tokens=1)
    status, found = post(server, "tokenize", messages=messages)
    assert status == 200
    assert tokenizer.decode(found["tokens"], skip_special=False) == (
        "<|user|>Hi<|end|><|assistant|>"
    )
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == found["count"]
    _, shorter = post(server, "tokenize", messages=messages, add_generation_prompt=False)
    assert shorter["tokens"] == found["tokens"][:-1]


def test_tokens_are_told_by_their_names_and_with_what_stands_before_a_text(
    server: wherry.Server, tokenizer: Tokenizer
) -> None:
    asked = {"return_token_strs": True}
    _, found = post(server, "tokenize", prompt=" word1, \u00e9", **asked)
    assert found["token_strs"] == tokenizer.inner.convert_ids_to_tokens(found["tokens"])
    messages = [{"role": "user", "content": "word1"}]
    _, plain = post(server, "tokenize", messages=messages, **asked)
    _, special = post(server, "tokenize", messages=messages, add_special_tokens=True)
    text = tokenizer.decode(plain["tokens"], skip_special=False)
    assert special["tokens"] == tokenizer.encode(text, special=True)
    assert len(plain["token_strs"]) == plain["count"]


def test_the_version_is_where_vllm_has_it(server: wherry.Server) -> None:
    assert httpx.get(f"{server.url}/version").json() == {"version": wherry.__version__}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, "prompt"),
        ("tokenize", {"prompt": "a", "messages": []}, 400, "prompt"),
        ("tokenize", {"messages": []}, 400, "messages"),
        ("tokenize", {"messages": [{"role": "system", "content": "x"}]}, 400, "messages"),
        ("tokenize", {"prompt": "a" * 1_000_000}, 400, "prompt"),
        ("tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("tokenize", {"prompt": "a", "model": "nobody"}, 404, "model"),
        ("tokenize", {"prompt": "a", "model": "shout"}, 404, "model"),
        ("detokenize", {}, 400, "tokens"),
        ("detokenize", {"tokens": [1, 300]}, 400, "tokens"),
        ("detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("detokenize", {"tokens": [1] * 257}, 400, "tokens"),
        ("detokenize", {"tokens": [2**70]}, 400, "tokens[0]"),
    ],
)
def test_what_no_tokenizer_takes_is_refused_by_name(
    server: wherry.Server, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    got, answer = post(server, path, **body)
    assert (got, answer["error"]["param"]) == (status, param), answer


def test_of_several_language_models_one_is_to_be_named(folder: Path) -> None:
    def one(name: str) -> LLM:
        return LLM(folder, name=name, cache_gb=0.01, threads=1, isolation="thread")

    with wherry.Server(one("a"), one("b"), port=0) as server:
        status, answer = post(server, "tokenize", prompt="Hi")
        assert (status, answer["error"]["param"]) == (400, "model")
        assert "there are: a, b" in answer["error"]["message"]
        assert post(server, "tokenize", prompt="Hi", model="b")[1]["count"] == 2


def test_an_adapter_is_a_model_of_its_own_name(folder: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "sql", folder, seed=1)
    chat = LLM(
        folder, name="chat", adapter_folder=str(tmp_path), cache_gb=0.01, threads=1,
        isolation="thread",
    )  # fmt: skip
    with (
        wherry.Server(chat, port=0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", timeout=TIMEOUT) as client,
    ):

        def said(model: str) -> tuple[str, str]:
            made = client.completions.create(
                model=model, prompt="one two three", max_tokens=8, temperature=0
            )
            return made.model, made.choices[0].text

        assert [(one.id, getattr(one, "parent", None)) for one in client.models.list()] == [
            ("chat", None),
            ("sql", "chat"),
        ]
        assert [one.model_dump()["max_model_len"] for one in client.models.list()] == [256, 256]
        assert client.models.retrieve("sql").model_dump()["root"] == "sql"
        alone, adapted = said("chat"), said("sql")
        assert (alone[0], adapted[0]) == ("chat", "sql")
        assert alone[1] != adapted[1]
        chunks = client.chat.completions.create(
            model="sql", messages=[{"role": "user", "content": "Hi"}], max_tokens=2, stream=True
        )
        assert {chunk.model for chunk in chunks} == {"sql"}
        (tmp_path / "sql" / "adapter_model.safetensors").write_bytes(b"damaged")
        with pytest.raises(openai.BadRequestError) as refused:
            said("sql")
        assert refused.value.param == "model"
        (tmp_path / "sql" / "adapter_config.json").unlink()
        with pytest.raises(openai.NotFoundError, match="'sql' does not exist") as missing:
            said("sql")
        assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
        with pytest.raises(openai.NotFoundError, match="'sql' does not exist; there are: chat"):
            client.models.retrieve("sql")
