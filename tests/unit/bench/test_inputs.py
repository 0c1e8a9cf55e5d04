"""Which rows are sent."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.bench import inputs
from wherry.bench.inputs import Lengths, lengths
from wherry.core.client.wire import ModelDescription, Tensor
from wherry.core.values.datatypes import BOOL, BYTES, FP32, INT64, Form
from wherry.core.values.errors import ConfigError


def model(*tensors: Tensor) -> ModelDescription:
    return ModelDescription("m", tensors, (), batched=True)


TEXT = Tensor("text", BYTES, (1,))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("300", Lengths(300, 300)),
        ("100-800", Lengths(100, 800)),
        ("5-120w", Lengths(5, 120, "words")),
    ],
)
def test_lengths_are_written_in_a_few_ways(text: str, wanted: Lengths) -> None:
    assert lengths(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "long", "800-100", "1,2", "normal:300,80"])
def test_other_lengths_are_errors_that_show_how(text: str) -> None:
    with pytest.raises(ConfigError, match=r"100-800|shorter one first"):
        lengths(text)


@given(st.integers(1, 2000), st.sampled_from(["characters", "words"]), st.integers())
def test_a_made_up_text_is_as_long_as_it_should_be(length: int, unit: str, seed: int) -> None:
    text = inputs.text_of(length, unit, random.Random(seed))
    assert (len(text) if unit == "characters" else len(text.split())) == length


def test_lengths_are_drawn_evenly() -> None:
    draw = random.Random(1)
    drawn = [lengths("100-800").draw(draw) for _ in range(20_000)]
    assert (min(drawn), max(drawn)) == (100, 800)
    assert sum(drawn) / len(drawn) == pytest.approx(450, rel=0.03)


def test_rows_are_made_up_from_the_metadata() -> None:
    described = model(
        TEXT, Tensor("x", FP32, (3, 2)), Tensor("n", INT64, ()), Tensor("b", BOOL, (2,))
    )
    rows = inputs.made_up(described, count=5)
    assert len(rows) == 5
    for row in rows:
        assert isinstance(row["text"], str)
        assert row["x"].shape == (3, 2)
        assert row["x"].dtype == np.float32
        assert isinstance(row["n"], int)
        assert row["b"].dtype == np.bool_
    assert inputs.made_up(described, count=5)[0]["text"] == rows[0]["text"]
    assert inputs.made_up(described, count=5, seed=1)[0]["text"] != rows[0]["text"]


def test_open_dimensions_must_be_said() -> None:
    described = model(Tensor("x", FP32, (-1, 80)))
    with pytest.raises(ConfigError, match=r"--shape x=16,80"):
        inputs.made_up(described)
    assert inputs.made_up(described, shapes={"x": (7, 80)})[0]["x"].shape == (7, 80)
    for wrong in ((7, 81), (7,)):
        with pytest.raises(ConfigError, match="does not fit"):
            inputs.made_up(described, shapes={"x": wrong})
    with pytest.raises(ConfigError, match="no input 'y' to shape; it has: x"):
        inputs.made_up(described, shapes={"y": (1,)})


def test_large_rows_are_not_made_a_thousand_times() -> None:
    rows = inputs.made_up(model(Tensor("x", FP32, (3, 512, 512))))
    assert len(rows) == 10


def test_json_rows_are_made_up_too() -> None:
    row = inputs.made_up(model(Tensor("j", BYTES, (1,), Form.JSON)), count=1)[0]
    assert set(row["j"]) == {"text"}


def test_rows_come_from_jsonl_and_from_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n"two"\n')
    (tmp_path / "a.txt").write_text("one\n{two}\n")
    assert inputs.values_of(str(tmp_path / "a.jsonl")) == [{"text": "one"}, "two"]
    assert inputs.values_of(str(tmp_path / "a.txt")) == ["one", "{two}"]
    described = model(TEXT)
    assert inputs.as_rows([{"text": "one"}, "two"], described) == [{"text": "one"}, {"text": "two"}]


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("a.jsonl", '{"text": "one"}\n{oops\n', "line 2"),
        ("a.jsonl", "\n", "not one row"),
        ("gone.jsonl", None, "No such file"),
        ("a.py:rows", "def rows():\n    raise RuntimeError('oh')", "raised RuntimeError: oh"),
        ("a.py:rows", "def rows():\n    return 'text'", "expected rows"),
        ("a.py:rows", "def rows():\n    return []", "yielded no row"),
        ("a.py:rows", "x = 1", "no function 'rows'"),
        ("a.py:rows", None, "no file"),
    ],
)
def test_inputs_that_are_none_say_where_and_why(
    tmp_path: Path, name: str, content: str | None, wrong: str
) -> None:
    if content is not None:
        (tmp_path / name.partition(":")[0]).write_text(content)
    with pytest.raises(ConfigError, match=wrong):
        inputs.values_of(str(tmp_path / name))


def test_a_generator_may_be_endless_and_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_inputs.py").write_text("WORD = 'hello'")
    (tmp_path / "gen.py").write_text(
        "import itertools\nfrom neighbour_of_inputs import WORD\n"
        "def rows():\n    for n in itertools.count(): yield {'text': f'{WORD} {n}'}\n"
    )
    rows = inputs.values_of(f"{tmp_path}/gen.py:rows")
    assert len(rows) == inputs.MOST_ROWS
    assert rows[1] == {"text": "hello 1"}


def test_a_row_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(ConfigError, match=r'write \{"text": \.\.\.\}'):
        inputs.as_rows([{"txt": "a"}], model(TEXT))
    with pytest.raises(ConfigError, match=r'"a": \.\.\., "b"'):
        inputs.as_rows(["text"], model(Tensor("a", FP32, ()), Tensor("b", FP32, ())))


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_row_stands_in_as_many_requests_as_any_other(count: int, size: int) -> None:
    made = inputs.batches(list(range(count)), size)
    flat = [row for batch in made for row in batch]
    assert {len(batch) for batch in made} == {size}
    assert len({flat.count(row) for row in range(count)}) == 1


def test_files_of_a_folder_or_a_pattern_are_rows(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.jpg", "c.txt"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "folder").mkdir()
    assert inputs.values_of(str(tmp_path)) == [b"a.jpg", b"b.jpg", b"c.txt"]
    assert inputs.values_of(str(tmp_path / "*.jpg")) == [b"a.jpg", b"b.jpg"]
    assert inputs.values_of(str(tmp_path / "a.jpg")) == [b"a.jpg"]
    kinds = [inputs.media_type(str(tmp_path / name)) for name in ("*.jpg", "a.jpg")]
    assert kinds == ["image/jpeg"] * 2
    with pytest.raises(ConfigError, match="not one file"):
        inputs.values_of(str(tmp_path / "*.png"))
    with pytest.raises(ConfigError, match=r"none\.jpg"):
        inputs.values_of(str(tmp_path / "none.jpg"))


MODEL = ModelDescription(
    "m", (Tensor("text", BYTES, (1,)), Tensor("x", FP32, (2,))), (), batched=True
)
ROWS = [
    {"text": "a", "x": np.array([1, 2], np.float32)},
    {"text": "bé", "x": np.array([3, 4], np.float32)},
]


def test_a_request_has_its_head_and_given_headers_win() -> None:
    made = inputs.encoded("POST", "/v2", "host:1", {"user-agent": "me", "X-A": "1"}, b"body", 3)
    assert made.data == (
        b"POST /v2 HTTP/1.1\r\nHost: host:1\r\nAccept: */*\r\nContent-Length: 4\r\n"
        b"user-agent: me\r\nX-A: 1\r\n\r\nbody"
    )
    assert made.rows == 3
    assert b"Content-Length" not in inputs.encoded("GET", "", "h", {}, b"").data
    assert inputs.encoded("GET", "", "h", {}, b"").data.startswith(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("header", [{"A": "1\r\nB: 2"}, {"A\n": "1"}])
def test_a_header_cannot_bring_another_one_along(header: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot stand in a request"):
        inputs.encoded("GET", "/", "h", header, b"")


def test_v2_requests_carry_numbers_as_binary_or_json() -> None:
    body, headers = inputs.infer_request(MODEL, ROWS)
    length = int(headers["Inference-Header-Content-Length"])
    assert body[length:] == np.array([[1, 2], [3, 4]], np.float32).tobytes()
    head = msgspec.json.decode(body[:length])
    assert [tensor["shape"] for tensor in head["inputs"]] == [[2, 1], [2, 2]]

    body, headers = inputs.infer_request(MODEL, ROWS, binary=False)
    assert headers == {"Content-Type": "application/json"}
    assert msgspec.json.decode(body)["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "bé"]},
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
    ]


def test_rows_of_one_request_must_be_alike() -> None:
    with pytest.raises(ConfigError, match="same inputs"):
        inputs.columns_of([{"a": 1}, {"b": 1}])


def test_openai_bodies_are_made_of_prompts_or_given_whole() -> None:
    made = msgspec.json.decode(inputs.generation("chat", "hi", "m", stream=True, max_tokens=5))
    assert made == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    given = {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 3}
    made = msgspec.json.decode(inputs.generation("chat", given, "m", stream=False, max_tokens=5))
    assert made == {"model": "m", **given}
    made = msgspec.json.decode(
        inputs.generation("completions", {"text": "p"}, "m", stream=False, max_tokens=None)
    )
    assert made == {"model": "m", "prompt": "p"}
    made = msgspec.json.decode(inputs.embedding(["a", "b"], "m"))
    assert made == {"model": "m", "input": ["a", "b"]}
    with pytest.raises(ConfigError, match="is not a prompt"):
        inputs.generation("chat", {"x": 1}, "m", stream=False, max_tokens=None)


def test_plain_bodies_are_text_bytes_or_json() -> None:
    assert inputs.body_of("é") == "é".encode()
    assert inputs.body_of(b"\xff") == b"\xff"
    assert inputs.body_of({"a": np.array([1], np.float32)}) == b'{"a":[1.0]}'
    assert (
        inputs.generate({"text": "a", "x": np.array([1, 2], np.float32)})
        == b'{"text":"a","x":[1.0,2.0]}'
    )
