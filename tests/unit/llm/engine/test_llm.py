"""Text or messages in, pieces of text out, many callers at once."""

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.unit.llm.engine import tiny
from wherry.core.models import host_weights
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.llm import LLM, Delta
from wherry.llm.engine import loading, runner
from wherry.llm.engine.linear import PlainLinear
from wherry.llm.engine.llama_cpp import LlamaCpp
from wherry.llm.engine.llm import _wait_briefly
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.engine.vllm_engine import VLLM
from wherry.testing.suite import check_engine

Ask = Callable[..., list[dict[str, Any]]]
GREEDY = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("llama")


@contextlib.contextmanager
def asking(folder: Path) -> Iterator[Ask]:
    with wherry.Runtime(LLM(folder, name="tiny", cache_gb=0.01, threads=1)) as runtime:
        # The thread that reads grammars and long prompts starts with the first, and is the model's.
        list(runtime.stream("tiny", prompt="?", parameters={"constraint": {"choice": ["!"]}}))
        yield lambda **inputs: list(runtime.stream("tiny", **inputs))


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[Ask]:
    with asking(folder) as ask:
        yield ask


def text(deltas: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(delta["text"] for delta in deltas if delta["index"] == index)


def tokens(deltas: list[dict[str, Any]]) -> list[int]:
    return [int(token) for delta in deltas for token in delta["token_ids"]]


def test_it_keeps_what_wherry_counts_on(folder: Path) -> None:
    check_engine("llm", folder, "Once upon a time")


def test_the_pieces_are_the_text_of_the_greedy_tokens(ask: Ask, folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    prompt = tokenizer.encode("Once upon a time")
    expected = tiny.reference(folder, prompt, 20)
    deltas = ask(prompt="Once upon a time", parameters=GREEDY)
    assert tokens(deltas) == expected
    assert text(deltas) == tokenizer.decode(expected)
    assert [delta["finish_reason"] for delta in deltas][-1] == "length"
    assert not any(delta["usage"] for delta in deltas[:-1])
    assert deltas[-1]["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 20,
        "cached_tokens": 0,
    }
    assert tokens(ask(token_ids=prompt, parameters=GREEDY)) == expected


def test_without_streaming_the_answer_is_one_piece(ask: Ask) -> None:
    pieces = ask(prompt="Hello", parameters=GREEDY)
    whole = ask(prompt="Hello", parameters=GREEDY, stream=False)
    assert len(whole) == 1
    assert (text(whole), tokens(whole)) == (text(pieces), tokens(pieces))


def test_messages_go_through_the_checkpoints_template(ask: Ask, folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    messages = [{"role": "user", "content": "Hi"}]
    prompt = tokenizer.encode("<|user|>Hi<|end|><|assistant|>", special=False)
    assert prompt[0] == tiny.USER
    assert prompt[-1] == tiny.ASSISTANT
    deltas = ask(messages=messages, parameters=GREEDY)
    assert tokens(deltas) == tiny.reference(folder, prompt, 20)
    with pytest.raises(InvalidRequest, match="unknown role robot"):
        ask(messages=[{"role": "robot", "content": "Hi"}], parameters=GREEDY)


def test_a_stop_text_ends_the_answer_and_its_rest_is_not_computed(ask: Ask) -> None:
    full = text(ask(prompt="abc", parameters=GREEDY))
    stop = full[4:6]
    deltas = ask(prompt="abc", parameters={**GREEDY, "stop": [stop]})
    assert text(deltas) == full[: full.index(stop)]
    assert deltas[-1]["finish_reason"] == "stop"
    assert deltas[-1]["usage"]["completion_tokens"] < 20
    kept = ask(prompt="abc", parameters={**GREEDY, "stop": [stop], "include_stop": True})
    assert text(kept) == full[: full.index(stop)] + stop


def test_a_stop_text_before_the_least_length_is_text_as_any_other(ask: Ask) -> None:
    full = text(ask(prompt="abc", parameters=GREEDY))
    stop = full[4:6]
    deltas = ask(prompt="abc", parameters={**GREEDY, "stop": [stop], "min_tokens": 20})
    assert text(deltas) == full
    assert deltas[-1]["finish_reason"] == "length"


def test_a_stop_token_ends_the_answer_and_is_not_in_its_text(ask: Ask, folder: Path) -> None:
    expected = tokens(ask(prompt="abc", parameters=GREEDY))
    stop = expected[5]
    place = expected.index(stop)
    deltas = ask(prompt="abc", parameters={**GREEDY, "stop_token_ids": [stop]})
    assert tokens(deltas) == expected[: place + 1]
    assert text(deltas) == Tokenizer.load(folder).decode(expected[:place])


def test_several_answers_come_with_their_index_and_one_usage(ask: Ask) -> None:
    wish = {"n": 3, "seed": 5, "max_tokens": 6, "ignore_eos": True}
    deltas = ask(prompt="Hello", parameters=wish)
    assert {delta["index"] for delta in deltas} == {0, 1, 2}
    assert sum(bool(delta["finish_reason"]) for delta in deltas) == 3
    assert [bool(delta["usage"]) for delta in deltas].count(True) == 1
    assert deltas[-1]["usage"]["completion_tokens"] == 18
    whole = ask(prompt="Hello", parameters=wish, stream=False)
    assert [text(whole, index) for index in range(3)] == [text(deltas, i) for i in range(3)]


def test_log_probabilities_name_each_token(ask: Ask, folder: Path) -> None:
    deltas = ask(prompt="Hello", parameters={**GREEDY, "logprobs": 2})
    entries = [entry for delta in deltas for entry in delta["logprobs"]]
    assert [entry["id"] for entry in entries] == tokens(deltas)
    for entry in entries:
        assert len(entry["top"]) == 2
        assert entry["logprob"] == pytest.approx(entry["top"][0]["logprob"])
        assert entry["logprob"] < 0
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert joined.decode(errors="replace") == Tokenizer.load(folder).decode(tokens(deltas))


def test_the_prompt_stands_in_front_of_the_answer_with_its_log_probabilities(
    ask: Ask, folder: Path
) -> None:
    tokenizer = Tokenizer.load(folder)
    prompt = "Who? <|user|>Me"
    tokens_of_it = tokenizer.encode(prompt)
    wish = {**GREEDY, "max_tokens": 2}
    plain = text(ask(prompt=prompt, parameters=wish))
    for inputs in ({"prompt": prompt}, {"token_ids": tokens_of_it}):
        assert text(ask(**inputs, parameters={**wish, "echo": True})) == prompt + plain
        for stream in (True, False):
            deltas = ask(**inputs, parameters={**wish, "echo": True, "logprobs": 1}, stream=stream)
            assert text(deltas) == prompt + plain
            said = [entry for delta in deltas for entry in delta["logprobs"]]
            assert [entry["id"] for entry in said] == [*tokens_of_it, *tokens(deltas)]
            assert (said[0]["logprob"], said[0]["top"]) == (None, [])
            assert all(entry["logprob"] <= entry["top"][0]["logprob"] for entry in said[1:])
            # Nothing was taken from the cache, though the prompt is known by now.
            assert deltas[-1]["usage"]["cached_tokens"] == 0


def test_each_of_n_answers_has_the_prompt_in_front_and_it_is_computed_once(ask: Ask) -> None:
    wish = {"n": 3, "seed": 5, "max_tokens": 4, "ignore_eos": True, "echo": True, "logprobs": 0}
    for stream in (True, False):
        deltas = ask(prompt="Hello", parameters=wish, stream=stream)
        reports = [
            [entry for delta in deltas if delta["index"] == index for entry in delta["logprobs"]]
            for index in range(3)
        ]
        assert all(text(deltas, index).startswith("Hello") for index in range(3))
        assert [len(report) for report in reports] == [9, 9, 9]
        assert reports[0][:5] == reports[1][:5] == reports[2][:5]
        assert reports[0][5:] != reports[1][5:]


def test_of_a_prompt_alone_nothing_is_generated(ask: Ask) -> None:
    wish = {"max_tokens": 0, "echo": True, "logprobs": 1}
    (delta,) = ask(prompt="Hello", parameters=wish)
    assert (delta["text"], delta["token_ids"].tolist(), delta["finish_reason"]) == (
        "Hello",
        [],
        "length",
    )
    assert len(delta["logprobs"]) == 5
    assert delta["usage"] == {"prompt_tokens": 5, "completion_tokens": 0, "cached_tokens": 0}
    (only,) = ask(prompt="Hello", parameters={"max_tokens": 0, "echo": True}, stream=False)
    assert (only["text"], only["logprobs"]) == ("Hello", [])


def test_a_bias_may_name_its_tokens_as_json_must(ask: Ask) -> None:
    wish = {**GREEDY, "max_tokens": 3, "logit_bias": {"65": 100.0}}
    assert tokens(ask(prompt="a", parameters=wish)) == [65] * 3


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({}, "give one of prompt, messages and token_ids"),
        ({"prompt": "a", "token_ids": [1]}, "give one of"),
        ({"token_ids": [9999]}, "token ids must be between"),
        ({"prompt": "a", "parameters": {"temperature": -1.0}}, "temperature must be between"),
        ({"prompt": "a", "parameters": {"temprature": 1.0}}, "temprature"),
        ({"prompt": "a", "parameters": {"max_tokens": "many"}}, "max_tokens"),
        ({"prompt": "a", "parameters": {"logprobs": 99}}, "logprobs"),
        ({"prompt": "a", "parameters": {"max_tokens": 0}}, "at least 1, or 0 with echo"),
        ({"prompt": "a", "parameters": {"max_tokens": 257}}, "max_tokens must be at most 256"),
        ({"prompt": "a", "parameters": {"min_tokens": 10**9}}, "min_tokens must be at most 256"),
        ({"prompt": "a", "parameters": {"max_tokens": -1, "echo": True}}, "at least 0"),
        ({"token_ids": [-1], "parameters": {"echo": True}}, "token ids must be between"),
        ({"prompt": "a" * 300}, "which leaves none for an answer"),
        ({"prompt": "a" * 10_000_000}, "10000000 characters, more than 256 tokens can hold"),
        ({"prompt": "\ud800"}, "surrogates not allowed"),
        ({"prompt": "a", "parameters": {"logit_bias": {"999": 1.0}}}, "logit_bias"),
        ({"messages": [{"content": "no role"}]}, "the chat template refuses"),
        ({"messages": "hello"}, "messages"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    ask: Ask, inputs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        ask(**inputs)


def test_many_callers_at_once_each_get_their_own_answer(folder: Path) -> None:
    with wherry.Runtime(LLM(folder, name="tiny", cache_gb=0.01, max_running=5)) as runtime:

        def generate(number: int) -> str:
            deltas = runtime.stream("tiny", prompt=f"Number {number}", parameters=GREEDY)
            return text(list(deltas))

        alone = [generate(number) for number in range(12)]
        together: dict[int, str] = {}
        threads = [
            threading.Thread(target=lambda n=n: together.__setitem__(n, generate(n)))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [together[number] for number in range(12)] == alone


def test_a_caller_who_leaves_gives_its_blocks_back(folder: Path) -> None:
    with wherry.Runtime(LLM(folder, name="tiny", cache_gb=0.01)) as runtime:
        stream = runtime.stream("tiny", prompt="Hello", parameters={"ignore_eos": True})
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        # The next request's steps come after the leave was told.
        list(runtime.stream("tiny", prompt="Hi", parameters=GREEDY))
        gauges = runtime.model("tiny").runner.gauges()["tiny_0"]
        assert (gauges["running"], gauges["waiting"], gauges["kv_cache_usage"]) == (0, 0, 0)


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    for source, problem in (
        (tmp_path, "no config.json there"),
        ("/nowhere/model", "no such folder: /nowhere/model"),
    ):
        with (
            pytest.raises(wherry.LoadFailed, match=problem),
            wherry.Runtime(LLM(source, name="none")),
        ):
            pass


def test_the_program_that_serves_it_does_not_load_torch() -> None:
    import subprocess
    import sys

    code = (
        "import wherry, sys; from wherry.llm import LLM; LLM('x').config();"
        " assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "policy", "spins"),
    [
        ({}, "PASSIVE", "2000"),
        ({"GOMP_SPINCOUNT": "7"}, "PASSIVE", "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE", None),
    ],
)
def test_threads_spin_for_a_moment_unless_the_environment_says_how_they_wait(
    given: dict[str, str], policy: str, spins: str | None
) -> None:
    environment = dict(given)
    _wait_briefly(environment)
    assert environment.get("OMP_WAIT_POLICY") == policy
    assert environment.get("GOMP_SPINCOUNT") == spins


# Calls and thoughts


@pytest.fixture(scope="module")
def thinking(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose marks of thoughts are special tokens, and whose template may open them."""
    made = tmp_path_factory.mktemp("thinking")
    shutil.copytree(folder, made, dirs_exist_ok=True)
    text = (made / "tokenizer.json").read_text()
    for word, mark in ((" word0", "<think>"), (" word1", "</think>")):
        text = text.replace(f'"{word}"', f'"{mark}"')
    tokenizer = json.loads(text)
    for token in tokenizer["added_tokens"]:
        token["special"] = token["special"] or "think" in token["content"]
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = tiny.TEMPLATE + "{% if opens %}<think>\n{% endif %}"
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        if (made / file).is_file():
            old = (made / file).read_text()
            plain, new = (
                json.dumps(t)[1:-1] if "json" in file else t for t in (tiny.TEMPLATE, template)
            )
            (made / file).write_text(old.replace(plain, new))
    return made


@pytest.fixture(scope="module")
def ask_thinking(thinking: Path) -> Iterator[Ask]:
    with asking(thinking) as ask:
        yield ask


def test_marks_of_thoughts_stay_in_the_text_and_other_special_tokens_do_not(
    thinking: Path, ask_thinking: Ask
) -> None:
    mark = Tokenizer.load(thinking).special_tokens()["<think>"]
    greedy = {**GREEDY, "max_tokens": 2}
    messages = [{"role": "user", "content": "Hi"}]

    def said(token: int, **inputs: Any) -> tuple[str, dict[str, Any]]:
        parameters = {**greedy, "allowed_token_ids": [token], **inputs.pop("parameters", {})}
        deltas = ask_thinking(parameters=parameters, **inputs)
        return text(deltas), deltas[0]["details"].get("style", {})

    style = {"tools": "hermes", "thoughts": "think", "opened": False}
    assert said(mark, messages=messages) == ("<think><think>", style)
    assert said(tiny.USER, messages=messages) == ("", style)
    opened = {**style, "opened": True}
    assert said(mark, messages=messages, template={"opens": True})[1] == opened
    all_ = {"skip_special_tokens": False}
    assert said(tiny.USER, messages=messages, parameters=all_)[0] == "<|user|><|user|>"
    # A text to be continued is not a chat.
    assert said(mark, prompt="Hi") == ("", {})


@pytest.mark.parametrize(
    ("template", "most", "answer", "reason"),
    [
        ({}, 20, "<think></think>aa", "stop"),
        ({"opens": True}, 20, "</think>aa", "stop"),
        ({"opens": True}, 2, "</think>a", "length"),
    ],
)
def test_a_model_thinks_before_an_answer_that_has_a_form(
    thinking: Path,
    ask_thinking: Ask,
    template: dict[str, Any],
    most: int,
    answer: str,
    reason: str,
) -> None:
    special = Tokenizer.load(thinking).special_tokens()
    likely = {special["<think>"]: 500.0, special["</think>"]: 1000.0}
    parameters = {
        **GREEDY,
        "max_tokens": most,
        "constraint": {"choice": ["aa"]},
        "logit_bias": likely,
        "n": 2,
    }
    hi = [{"role": "user", "content": "Hi"}]
    deltas = ask_thinking(messages=hi, template=template, parameters=parameters)
    for index in (0, 1):
        one = [delta for delta in deltas if delta["index"] == index]
        assert (text(deltas, index), one[-1]["finish_reason"]) == (answer, reason)
    thoughts = answer.partition("</think>")[0].count("<think>") + 1
    assert deltas[-1]["usage"]["reasoning_tokens"] == 2 * thoughts


@pytest.mark.parametrize(
    ("given", "fields", "answer"),
    [
        ({}, {"thinking_budget": 2}, "<think><think><think></think><think><think>"),
        ({}, {"thinking_budget": 0}, "<think></think><think><think><think><think>"),
        ({}, {}, "<think>" * 6),
        ({"template": {"opens": True}}, {"thinking_budget": 1}, "<think></think>" + "<think>" * 4),
        ({"template": {"opens": True}}, {"thinking_budget": 0}, "</think>" + "<think>" * 5),
        (
            {"template": {"opens": True}},
            {"thinking_budget": 2, "constraint": {"choice": ["aa"]}},
            "<think><think></think>aa",
        ),
        # A text to be continued has thoughts where it has begun or ended them.
        ({"prompt": "Hi <think>"}, {"thinking_budget": 1}, "<think></think>" + "<think>" * 4),
        ({"prompt": "<think></think>"}, {"thinking_budget": 0}, "<think>" * 6),
    ],
)
def test_thoughts_end_when_there_have_been_enough(
    thinking: Path,
    ask_thinking: Ask,
    given: dict[str, Any],
    fields: dict[str, Any],
    answer: str,
) -> None:
    special = Tokenizer.load(thinking).special_tokens()
    parameters = {
        **GREEDY,
        "max_tokens": 6,
        "logit_bias": {special["<think>"]: 1000.0},
        "ignore_eos": True,
        "n": 2,
        "skip_special_tokens": False,
        **fields,
    }
    inputs: dict[str, Any] = {"parameters": parameters, **given}
    if "prompt" not in given:
        inputs["messages"] = [{"role": "user", "content": "Hi"}]
    deltas = ask_thinking(**inputs)
    for index in (0, 1):
        assert text(deltas, index).replace("<|end|>", "") == answer


def test_a_bound_of_thoughts_needs_a_model_whose_thoughts_are_known(ask: Ask) -> None:
    with pytest.raises(InvalidRequest, match="thinking_budget: the marks") as refused:
        ask(prompt="Hi", parameters={"thinking_budget": 5})
    assert refused.value.field == "thinking_budget"


def test_a_bound_of_thoughts_keeps_the_end_of_the_text_from_ending_it(
    thinking: Path, ask_thinking: Ask
) -> None:
    tokens = Tokenizer.load(thinking)
    assert tokens.end is not None
    parameters = {
        **GREEDY,
        "max_tokens": 5,
        "logit_bias": {tokens.end: 1000.0},
        "ignore_eos": True,
        "thinking_budget": 2,
        "skip_special_tokens": False,
    }
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    chat["template"] = {"opens": True}
    deltas = ask_thinking(parameters=parameters, **chat)
    assert deltas[-1]["finish_reason"] == "length"
    assert text(deltas).count("</think>") == 1


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wherry.llm.engine.loading", None)
    with pytest.raises(ConfigError, match=r"llm nowhere: .* pip install 'wherry\[llm\]'"):
        LLM("nowhere", name="x").load(wherry.Device("cpu"))


def test_a_caller_in_the_program_reads_a_piece_as_an_object_or_as_a_client_reads_it(
    ask: Ask,
) -> None:
    whole = Delta.empty(0)
    for delta in ask(prompt="Hello", parameters={**GREEDY, "max_tokens": 4}):
        assert isinstance(delta, Delta)
        assert (delta["text"], {**delta}["index"]) == (delta.text, 0)
        with pytest.raises(KeyError):
            delta["extend"]
        whole.extend(Delta(**delta))
    assert len(whole.token_ids) == 4


def test_every_engine_takes_the_same_inputs_but_llama_cpp_no_task() -> None:
    ours, vllm, llama = (
        [spec.name for spec in model("a").signature().inputs] for model in (LLM, VLLM, LlamaCpp)
    )
    assert ours == vllm == [*llama, "task"]
    assert "messages" in llama


def test_an_engine_rests_with_its_weights_and_is_built_again_without_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is one device here: weights are moved to other memory of it, both ways."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runner, "best_for", lambda *_: PlainLinear)
    monkeypatch.setattr(host_weights, "is_elsewhere", lambda *_: True)
    reads, load_network = list[str](), runner.load_network

    def counted(checkpoint: Any, **how: Any) -> Any:
        reads.append(checkpoint.folder.name)
        return load_network(checkpoint, **how)

    monkeypatch.setattr(loading, "load_network", counted)
    how: dict[str, Any] = {"cache_gb": 0.01, "threads": 1, "memory": 60, "offload": True}
    models = [LLM(folder, name=name, **how) for name in ("one", "two")]
    with wherry.Runtime(*models, device_memory={"cpu": 100}) as runtime:
        answers = [
            text(list(runtime.stream(name, prompt="Once", parameters=GREEDY)))
            for name in ("one", "two", "one", "two", "one")
        ]
        assert len(set(answers)) == 1
        assert runtime.model("two").runner.residence()["state"] == "resting"
        assert "engine" not in vars(models[1])
    assert len(reads) == 2
