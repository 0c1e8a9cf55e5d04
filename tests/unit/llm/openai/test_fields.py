"""What may stand in an OpenAI request, and what does it mean to the model?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer

from tests.http_exchange import MemoryExchange
from wherry.core.values.errors import InvalidRequest
from wherry.llm.openai.chat_request import ChatRequest, conversation, in_texts
from wherry.llm.openai.completions import CompletionRequest
from wherry.llm.openai.errors import BadField, described
from wherry.llm.openai.reading import decoded, header_of
from wherry.llm.openai.response_request import ResponsesRequest
from wherry.llm.openai.task_requests import EmbeddingRequest
from wherry.server.http.exchange import HttpRequest, RequestHead

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> ChatRequest:
    body = msgspec.json.encode({"model": "m", "messages": HELLO, **fields})
    request: ChatRequest = decoded(body, ChatRequest)
    return request


def completion(**fields: Any) -> CompletionRequest:
    body = msgspec.json.encode({"model": "m", "prompt": "once", **fields})
    request: CompletionRequest = decoded(body, CompletionRequest)
    return request


def test_what_is_not_given_is_left_to_the_model() -> None:
    assert chat().call().inputs["parameters"] == {}
    assert chat(temperature=None, stop=None, max_tokens=None).call().inputs["parameters"] == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 0}, {"functions": []}, {"function_call": "none"}, {"tools": []},
        {"tools": [], "tool_choice": "auto"}, {"tools": None, "tool_choice": "none"},
        {"n": None, "seed": None, "stream_options": None, "metadata": {}, "user": ""},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"parallel_tool_calls": False},
    ],
)  # fmt: skip
def test_what_asks_for_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert chat(**fields).call().inputs["parameters"] == {}


def test_of_no_probability_is_the_likeliest_token_alone() -> None:
    for request in (chat(top_p=0, temperature=1), completion(top_p=0)):
        assert request.parameters() == {"temperature": 0.0}


def test_a_byte_order_mark_says_nothing() -> None:
    for body in (b'{"messages": []}', bytearray(b'{"messages": [], "n": null}')):
        assert decoded(b"\xef\xbb\xbf" + body, ChatRequest, []).messages == []


def test_fields_become_those_of_the_engine() -> None:
    request = chat(
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0,
        stop="end",
        logprobs=True,
        top_logprobs=3,
        logit_bias={"17": -100},
        top_k=-1,
        include_stop_str_in_output=True,
    )
    assert request.call().inputs["parameters"] == {
        "max_tokens": 7,
        "temperature": 0,
        "stop": ["end"],
        "logprobs": 3,
        "logit_bias": {17: -100},
        "include_stop": True,
    }


def test_fields_that_say_nothing_about_the_answer_are_accepted() -> None:
    chat(user="me", metadata={"a": "b"}, store=False, service_tier="auto")


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": "warm"}, "temperature", "expected float"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "not a field"),
        ({"messages": "hi"}, "messages", "expected array"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "one of 'text', 'json_object'",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "is missing"),
        ({"logprob": True}, "logprob", "did you mean 'logprobs'"),
        ({"modalities": ["audio"]}, "modalities", "is not supported$"),
        ({"echo": True}, "echo", "is not supported$"),
        ({"audio": {}}, "audio", "is not supported$"),
        ({"functions": [{}]}, "functions", "send tools instead"),
        ({"seed": 2**70}, "seed", "expected int <="),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "expected float"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "its keys: expected int"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "its keys: expected int >= 0"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "its keys: integer value out of range"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias", "its keys: expected int"),
        ({"stop_token_ids": [2**64]}, "stop_token_ids[0]", "expected int <="),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "expected int <= 20"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "length >= 1"),
        ({"guided_choice": ["a"]}, "guided_choice", "send structured_outputs.choice instead"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BadField, match=problem) as error:
        chat(**fields)
    assert error.value.field == field


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"messages": ["\\"', b'{"n": NaNo}'])
def test_a_body_that_is_no_json_says_so(body: bytes) -> None:
    with pytest.raises(BadField, match="not JSON"):
        decoded(body, ChatRequest)


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        (b'"temperature": NaN', None, r"not JSON: .*\(byte 46\)"),
        (b'"stop": "\xff"', None, "not JSON: .*(?i:utf-8)"),
        (b'"stop": "a\x01"', None, r"not JSON: .*\(byte 41\)"),
        (b'"stop": ["NaN", "\\ud83d"]', "stop", "half of a surrogate pair"),
        (b'"stop": "\\udc00 \\ud83d\\ude00"', "stop", "half of a surrogate pair"),
        (b'"x": {"\\ud83d": 1}', "x", "half of a surrogate pair"),
        (b'"\\ud83d": 1', None, "a field's name has half of a surrogate pair"),
        (b'"metadata": ' + b"[" * 100_000, None, "more than 100 deep"),
        (b'"tools": ' + b'[{"a":' * 60 + b"1" + b"}]" * 60, None, "more than 100 deep"),
        (b'"x": "[[", "y": ' + b"[" * 100 + b"]" * 100, None, "more than 100 deep"),
    ],
)
def test_what_is_no_json_says_why(fields: bytes, field: str | None, problem: str) -> None:
    with pytest.raises(BadField, match=problem) as error:
        decoded(b'{"model": "m", "messages": [], ' + fields + b"}", ChatRequest, [])
    assert error.value.field == field


@pytest.mark.parametrize("depth", [101, 50_000])
@pytest.mark.parametrize("opens", ["[", '{"a":'])
def test_json_in_a_text_is_not_deeper_than_any(depth: int, opens: str) -> None:
    deep = opens * depth + "0" + {"[": "]"}.get(opens, "}") * depth
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
    said: list[dict[str, Any]] = [*HELLO, {"role": "assistant", "tool_calls": [called]}]
    assert conversation(said)[1]["tool_calls"][0]["function"]["arguments"] == deep  # no object
    with pytest.raises(BadField, match=r"nested more than 100 deep"):
        chat(structured_outputs={"json": deep}).call()
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": deep}
    asked = decoded(msgspec.json.encode({"input": [called]}), ResponsesRequest)
    assert asked.chat().messages[0]["tool_calls"][0]["function"]["arguments"] == deep


def test_brackets_in_texts_and_in_a_row_are_no_depth() -> None:
    assert chat(messages=[{"role": "user", "content": "[{\\" * 1000}] * 60, n=2).n == 2


def test_a_field_that_is_not_known_may_be_null() -> None:
    assert chat(audio=None, guided_backend=None, n=2).n == 2
    with pytest.raises(BadField, match="audio: is not supported"):
        chat(audio={"voice": None}, verbosity=None)


def test_a_field_that_is_not_known_is_left_out_and_named() -> None:
    ignored: list[str] = []
    body = msgspec.json.encode(
        {
            "messages": HELLO,
            "temprature": 1,
            "n": 2,
            "x\n,y": [],
            "nothing": None,
            "stream": True,
            "stream_options": {"include_usage": True, "pace": 1},
        }
    )
    wanted = decoded(body, ChatRequest, ignored)
    assert (wanted.n, wanted.shown().usage) == (2, True)
    assert ignored == ["temprature", "x\n,y", "stream_options.pace"]
    assert header_of(ignored) == "temprature, x??y, stream_options.pace"
    many = header_of(["n" * 1000] * 100)
    assert len(many) < 1500
    assert many.endswith(", ...")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"functions": [{}]}, "functions"),
    ],
)
def test_what_is_known_and_not_done_is_never_ignored(fields: dict[str, Any], field: str) -> None:
    body = msgspec.json.encode({"messages": HELLO, **fields})
    with pytest.raises(BadField, match="not supported") as refused:
        decoded(body, ChatRequest, [])
    assert refused.value.field == field


def test_what_is_not_done_and_no_number_of_python_is_refused_by_its_name() -> None:
    with pytest.raises(BadField, match="not supported") as refused:
        decoded(b'{"messages": [], "length_penalty": 1e999}', ChatRequest, [])
    assert refused.value.field == "length_penalty"


def test_what_is_not_done_may_ask_for_nothing() -> None:
    chat(use_beam_search=False, length_penalty=1, logits_processors=[], verbosity="medium")


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"structured_outputs": {"json": {"type": "object"}}}, {"json_schema": {"type": "object"}}),
        ({"structured_outputs": {"json": '{"enum": [1]}'}}, {"json_schema": {"enum": [1]}}),
        ({"structured_outputs": {"choice": ["a"]}}, {"choice": ["a"]}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_object", "schema": {"enum": [1]}}},
            {"json_schema": {"enum": [1]}},
        ),
        (
            {"response_format": {"type": "json_schema", "schema": {"enum": [1]}}},
            {"json_schema": {"enum": [1]}},
        ),
    ],
)
def test_the_form_of_an_answer_goes_by_many_names(
    fields: dict[str, Any], constraint: dict[str, Any]
) -> None:
    assert chat(**fields).call().inputs["parameters"]["constraint"] == constraint
    assert completion(**fields).sampling()["constraint"] == constraint
    assert completion(**fields).named("constraint") == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
    ],
)
def test_a_form_that_is_none_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as error:
        completion(**fields).sampling()
    assert error.value.field == field


def test_what_the_model_blames_has_the_requests_own_name() -> None:
    assert chat(max_completion_tokens=0).named("max_tokens") == "max_completion_tokens"
    assert chat(max_tokens=0).named("max_tokens") == "max_tokens"
    assert chat().named("prompt") == "messages"
    assert completion().named("prompt") == "prompt"
    assert chat().named("include_stop") == "include_stop_str_in_output"
    assert chat(tools=TOOLS, tool_choice="required").named("constraint") == "tool_choice"


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("first", "second")
]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_of_several_tools_some_may_be_allowed() -> None:
    request = chat(tools=TOOLS, tool_choice=allowed("auto", "second"))
    assert [t["function"]["name"] for t in request.call().inputs["tools"]] == ["second"]
    assert "constraint" not in request.call().inputs["parameters"]
    forced = (
        chat(tools=TOOLS, tool_choice=allowed("required", "second"))
        .call()
        .inputs["parameters"]["constraint"]
    )
    assert forced["json_schema"]["items"]["properties"]["name"] == {"const": "second"}
    for mode in ("auto", "required"):
        with pytest.raises(BadField, match="not among the tools: third"):
            chat(tools=TOOLS, tool_choice=allowed(mode, "second", "third")).call()


def test_special_tokens_are_the_chat_templates_affair() -> None:
    assert chat(add_special_tokens=False).call().inputs["parameters"] == {}
    assert chat(add_special_tokens=True).call().inputs["parameters"] == {"add_special_tokens": True}
    assert completion(add_special_tokens=False).sampling() == {"add_special_tokens": False}
    assert completion(add_special_tokens=True).sampling() == {}


def test_a_model_may_be_left_out_and_messages_may_not() -> None:
    assert decoded(b'{"messages": []}', ChatRequest).model is None
    with pytest.raises(BadField, match="messages: is missing"):
        decoded(b'{"model": "m"}', ChatRequest)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": 1.5}, "thinking_token_budget"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_is_asked(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadField) as refused:
        chat(**fields).call()
    assert refused.value.field == field


def test_the_fields_of_vllm_are_the_engines() -> None:
    request = chat(
        allowed_token_ids=[1],
        truncate_prompt_tokens=-1,
        thinking_token_budget=5,
        prompt_logprobs=0,
        return_token_ids=True,
        continue_final_message=True,
        documents=[{"title": "t"}],
    )
    assert request.call().inputs["parameters"] == {
        "allowed_token_ids": [1],
        "truncate_prompt": 0,
        "thinking_budget": 5,
        "prompt_logprobs": 0,
        "report_prompt_tokens": True,
    }
    assert request.call().inputs["template"] == {
        "add_generation_prompt": False,
        "continue_final_message": True,
        "documents": [{"title": "t"}],
    }
    assert request.named("truncate_prompt") == "truncate_prompt_tokens"
    assert request.named("thinking_budget") == "thinking_token_budget"
    assert request.named("report_prompt_tokens") == "return_token_ids"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"top_logprobs": 2}, "needs logprobs"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadField, match=problem):
        chat(**fields).call()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_what_completions_do_not_do_is_refused_by_name(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadField, match=f"^{problem}: "):
        completion(**fields).sampling()


@pytest.mark.parametrize(
    ("fields", "echoes", "by_the_model"),
    [
        ({}, [], False),
        ({"echo": True, "max_tokens": 2}, ["once"], False),
        ({"echo": True, "prompt": ["a", "b"]}, ["a", "b"], False),
        ({"echo": True, "prompt": [1, 2]}, [], True),
        ({"echo": True, "prompt": [[1], [2]]}, [], True),
        ({"echo": True, "logprobs": 0}, [], True),
        ({"echo": True, "max_tokens": 0}, [], True),
        ({"echo": True, "truncate_prompt_tokens": 2}, [], True),
    ],
)
def test_an_echo_that_needs_the_model_is_asked_of_it(
    fields: dict[str, Any], echoes: list[str], by_the_model: bool
) -> None:
    request = completion(**fields)
    assert request.echoes() == echoes
    assert request.sampling().get("echo", False) is by_the_model


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_is_one_or_several_texts_or_tokens(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [[1], []]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(BadField, match="prompt: is empty"):
        completion(prompt=prompt).prompts()


@pytest.mark.parametrize("prompt", [["a", 1], [[1], "a"]])
def test_prompts_of_several_kinds_are_refused(prompt: Any) -> None:
    with pytest.raises(BadField, match="prompt: must hold"):
        completion(prompt=prompt).prompts()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "input: is empty"),
        (["a", 1], "input: must hold texts, or tokens, or lists"),
        ([1, [2]], "input: must hold texts, or tokens, or lists"),
        ([[1], []], r"input\[1\]: is empty"),
        (["a"] * 2049, "input: has 2049 texts or lists of tokens; send at most 2048"),
        ([-1], r"input\[0\]: expected int >= 0"),
    ],
)
def test_what_cannot_be_embedded_is_named(given: Any, says: str) -> None:
    body = msgspec.json.encode({"model": "m", "input": given})
    with pytest.raises(BadField, match=says):
        decoded(body, EmbeddingRequest).rows()


def test_a_conversation_is_what_a_chat_template_takes() -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "+"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    made = conversation(messages)
    assert [message["role"] for message in made] == ["system", "user", "assistant", "tool"]
    assert made[1] == messages[1]
    assert made[2]["content"] is None
    assert [text["content"] for text in in_texts(made)] == ["be short", "1\n+", "", "2"]
    assert made[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text", "refusal"])
def test_parts_are_texts_in_whatever_form_of_openai_s(kind: str) -> None:
    part = {"type": kind, ("refusal" if kind == "refusal" else "text"): "a"}
    (made,) = conversation([{"role": "user", "content": [part, "b"]}])
    assert made["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert in_texts([made])[0]["content"] == "a\nb"


def test_what_a_client_sent_of_a_message_or_a_tool_is_what_the_template_gets() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    said = {"name": None, "refusal": None, "role": "user", "content": [part], "x": {"y": None}}
    for strict in ({}, {"strict": None}, {"strict": False, "more": [1]}):
        function = {"parameters": {"z": 1, "a": None}, **strict, "name": "f"}
        tool = {"function": function, "cache": {"k": 1}, "type": "function"}
        inputs = chat(messages=[said], tools=[tool]).call().inputs
        sent = msgspec.json.encode([inputs["messages"], inputs["tools"]])
        assert sent == msgspec.json.encode([[said], [tool]])


@pytest.mark.parametrize("arguments", ['{"a": "Ber', "[1]", "1", "{a: 1}", '{"a": 1} {}', '"x"'])
def test_arguments_that_are_no_object_are_the_text_that_they_are(arguments: str) -> None:
    called = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    (made,) = conversation([{"role": "assistant", "tool_calls": called}])
    assert made["tool_calls"] == called


@pytest.mark.parametrize("arguments", [{}, None, "", " ", "null", "{}"])
def test_arguments_that_are_none_are_an_empty_object(arguments: Any) -> None:
    function = {"name": "f"} if arguments == {} else {"name": "f", "arguments": arguments}
    (made,) = conversation([{"role": "assistant", "tool_calls": [{"function": function}]}])
    assert made["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("calls", [[], None])
def test_no_calls_are_not_there(calls: Any) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "hm"}
    assert conversation([said]) == [{"role": "assistant", "content": None, "reasoning": "hm"}]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "", "content": "x"}, "messages[0].role"),
        ({"role": "r" * 65, "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 1}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[0].content[0]",
        ),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": 3}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
)
def test_a_message_that_no_template_takes_is_named(message: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as error:
        conversation([message])
    assert error.value.field == field


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}},
            {"json_schema": CITY},
        ),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choice": ["yes", "no"]}),
        ({"tools": [WEATHER], "tool_choice": "auto"}, None),
    ],
)
def test_what_the_answer_must_look_like_is_the_engines_constraint(
    fields: dict[str, Any], constraint: Any
) -> None:
    assert chat(**fields).call().inputs["parameters"].get("constraint") == constraint


def test_an_answer_that_must_call_has_no_text_to_be_of_a_format() -> None:
    formed = {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "integer"}}}
    forced = {"tools": [WEATHER], "tool_choice": "required"}
    both = chat(**forced, response_format=formed).call().inputs["parameters"]
    assert both == chat(**forced).call().inputs["parameters"]
    may = (
        chat(tools=[WEATHER], tool_choice="auto", response_format=formed)
        .call()
        .inputs["parameters"]
    )
    assert may["constraint"] == {"json_schema": {"type": "integer"}}
    with pytest.raises(BadField, match="different answers"):
        chat(**forced, structured_outputs={"regex": "a"}).call()


def test_a_tool_that_must_be_called_leaves_no_other_answer() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    one = (
        chat(tools=[WEATHER, TIME], tool_choice=named)
        .call()
        .inputs["parameters"]["constraint"]["json_schema"]
    )
    arguments = {"$id": "urn:tool:0", **CITY}
    assert one["properties"] == {"name": {"const": "weather"}, "arguments": arguments}
    either = (
        chat(tools=[WEATHER, TIME], tool_choice="required")
        .call()
        .inputs["parameters"]["constraint"]
    )
    several = either["json_schema"]
    names = [call["properties"]["name"]["const"] for call in several["items"]["anyOf"]]
    assert (several["type"], several["minItems"], names) == ("array", 1, ["weather", "time"])
    single = chat(tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False)
    assert single.call().inputs["parameters"]["constraint"] == {"json_schema": several["items"]}


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "function", "name": "f"}, "tools[0].function"),  # as /v1/responses has it
        ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
        *(
            (
                {"type": "function", "function": {"name": "f", "parameters": {"type": types}}},
                "tools[0].function.parameters",
            )
            for types in ("string", "wizard", 3, ["string", "null"])
        ),
    ],
)
def test_a_function_without_a_name_or_with_other_arguments_than_an_object_is_refused(
    tool: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadField) as error:
        chat(tools=[tool]).call()
    assert error.value.field == field


@pytest.mark.parametrize("parameters", [{}, {"type": ["object", "null"]}, {"type": None}, CITY])
def test_the_arguments_of_a_forced_call_are_an_object(parameters: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    named = {"type": "function", "function": {"name": "f"}}
    constraint = chat(tools=[tool], tool_choice=named).call().inputs["parameters"]["constraint"]
    grammar = LLMatcher.grammar_from_json_schema(constraint["json_schema"])
    tokens = LLTokenizer("byte")
    for arguments, fits in [('{"city": "Rome"}', True), ("null", False), ('"Rome"', False)]:
        call = tokens.tokenize_str(f'{{"name": "f", "arguments": {arguments}}}')
        matcher = LLMatcher(tokens, grammar)
        assert (matcher.consume_tokens(call) and not matcher.is_error()) == fits


def test_definitions_of_a_tools_arguments_stay_its_own() -> None:
    def tool(name: str, value: str) -> dict[str, Any]:
        parameters = {
            "$defs": {"Value": {"const": value}},
            "type": "object",
            "properties": {"value": {"$ref": "#/$defs/Value"}},
            "required": ["value"],
        }
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    tools = [tool("f", "of f"), tool("g", "of g")]
    constraint = chat(tools=tools, tool_choice="required").call().inputs["parameters"]["constraint"]
    grammar = LLMatcher.grammar_from_json_schema(constraint["json_schema"])
    tokens = LLTokenizer("byte")
    for name, value, fits in [("f", "of f", True), ("g", "of g", True), ("g", "of f", False)]:
        call = f'[{{"name": "{name}", "arguments": {{"value": "{value}"}}}}]'
        matcher = LLMatcher(tokens, grammar)
        assert (
            matcher.consume_tokens(tokens.tokenize_str(call)) and not matcher.is_error()
        ) == fits


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
    ],
)
def test_constraints_that_cannot_be_met_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as error:
        chat(**fields).call()
    assert error.value.field == field


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("truncate_prompt must be less", "model 'm': truncate_prompt_tokens must be less"),
        ("the truncate_prompt is odd", "model 'm': the truncate_prompt is odd"),
    ],
)
def test_what_the_engine_blames_is_told_by_the_requests_name(words: str, told: str) -> None:
    error = InvalidRequest(f"model 'm': {words}", field="truncate_prompt")
    exchange = MemoryExchange(HttpRequest(RequestHead("POST", "/")))
    status, body, _ = described(exchange, error, chat().named)
    assert (status, msgspec.json.decode(body)["error"]["message"]) == (400, told)


def test_unknown_members_of_a_format_are_ignored_and_named_or_refused() -> None:
    schema = {"name": "n", "schema": {"enum": [1]}, "indent": 2}
    body = msgspec.json.encode(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "response_format": {"type": "json_schema", "json_schema": schema, "pretty": True},
        }
    )
    ignored: list[str] = []
    wanted = decoded(body, ChatRequest, ignored)
    assert sorted(ignored) == ["response_format.json_schema.indent", "response_format.pretty"]
    assert wanted.call().inputs["parameters"]["constraint"] == {"json_schema": {"enum": [1]}}
    with pytest.raises(BadField, match="response_format"):
        decoded(body, ChatRequest)
