"""Does a configuration that was made to be expensive cost more than one of its size may?"""

import contextlib
import json
from collections.abc import Callable

import pytest

from tests.costs import assert_linear
from wherry.triton.repository import json_form, pbtxt
from wherry.triton.repository.ensemble_graph import decoupled, graph_problems
from wherry.triton.repository.schema import LONGEST_PROBLEM, MOST_PROBLEMS, BadConfig
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonEnsembling,
    TritonEnsemblingStep,
    TritonTransactionPolicy,
)

pytestmark = pytest.mark.slow

Make = Callable[[int], str]


def each(part: str, every: int = 1) -> Make:
    """`part` again and again, {n} being its number."""
    return lambda size: "".join(part.replace("{n}", str(n)) for n in range(size // every))


def around(start: str, make: Make, end: str = "") -> Make:
    return lambda size: start + make(size) + end


STEP = (
    'step { model_name: "m{n}" model_version: -1'
    ' input_map { key: "x" value: "t{n}" } output_map { key: "y" value: "u{n}" } } '
)
TEXTS: dict[str, Make] = {
    "inputs": each('input { name: "i{n}" data_type: TYPE_FP32 dims: [ 1 ] } ', 8),
    "one input many times": each('input { name: "i" data_type: TYPE_FP32 dims: [ 1 ] } ', 8),
    "dims": around('input { name: "x" dims: [', each("1,"), "1] }"),
    "wrong dims": around('input { name: "x" dims: [', each('"a",'), "1] }"),
    "unknown fields": each("foo{n}: 1 "),
    "a long unknown field": around("f", each("f"), ": 1"),
    "unknown messages in each other": around("foo ", each("{ a ")),
    "unknown messages that end": lambda size: "foo " + "{ a " * size + "}" * size,
    "brackets": around("input ", each("{")),
    "lists": around("input: ", each("[")),
    "a field again and again": each('name: "m" '),
    "parameters": each('parameters { key: "k{n}" value { string_value: "v" } } ', 8),
    "a key again and again": each('parameters { key: "k" value { string_value: "v" } } ', 8),
    "a string without its end": around('name: "', each("a")),
    "escapes without their end": around('name: "', each('\\"')),
    "strings after each other": around("name: ", each('"a" ')),
    "unknown escapes": around('name: "', each("\\q"), '"'),
    "halves of characters": around('name: "', each("\\ud800"), '"'),
    "digits": around("max_batch_size: ", each("9")),
    "digits that a letter spoils": around("max_batch_size: ", each("9"), ".x"),
    "a fraction that a letter spoils": around("max_batch_size: 1.", each("9"), "x"),
    "an exponent that a letter spoils": around("max_batch_size: 1e", each("9"), "x"),
    "hexadecimal digits": around("max_batch_size: 0x", each("f")),
    "hexadecimal digits that a letter spoils": around("max_batch_size: 0x", each("f"), "x"),
    "octal digits": around("max_batch_size: 0", each("7")),
    "comments": each("# a\n"),
    "one comment": around("#", each("#")),
    "spaces": around("", each(" "), "%"),
    "empty lines": around("", each("\n"), "%"),
    "maps in maps": each("cc_model_filenames { "),
    "instance groups": each("instance_group { count: 1 kind: KIND_CPU } ", 8),
    "preferred sizes": around(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [", each("9,"), "9] }"
    ),
    "warm-up": each(
        'model_warmup { name: "w" batch_size: 1 inputs { key: "a{n}"'
        " value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } } ", 16
    ),
    "controls of a sequence": around(
        "max_batch_size: 8 sequence_batching { ", each('control_input { name: "a{n}" } ', 4), "}"
    ),
    "steps whose tensors nothing gives": around(
        'platform: "ensemble" ensemble_scheduling { ', each(STEP, 16), "}"
    ),
    "one step of many tensors": around(
        'platform: "ensemble" ensemble_scheduling { step { model_name: "m" ',
        each('input_map { key: "x{n}" value: "t{n}" } output_map { key: "y{n}" value: "u" } ', 16),
        "} }",
    ),
}  # fmt: skip
JSONS: dict[str, Make] = {
    "unknown fields": lambda size: json.dumps({f"foo{n}": 1 for n in range(size)}),
    "messages in each other": lambda size: '{"input":' * size,
    "lists in each other": lambda size: '{"input":' + "[" * size,
    "inputs": lambda size: json.dumps({"input": [{"name": f"i{n}"} for n in range(size)]}),
    "inputs of a wrong kind": lambda size: json.dumps({"input": [1] * size}),
    "digits": lambda size: '{"max_batch_size":' + "9" * size + "}",
    "digits as text": lambda size: '{"max_batch_size":"' + "9" * size + '"}',
    "capitals": lambda size: json.dumps({"A" * size: 1}),
    "parameters": lambda size: json.dumps(
        {"parameters": {f"k{n}": {"string_value": "v"} for n in range(size)}}
    ),
}


def refusals_are_fine(read: Callable[[str], object]) -> Callable[[str], None]:
    def run(text: str) -> None:
        with contextlib.suppress(BadConfig):
            read(text)

    return run


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_the_text_format_costs_what_its_size_is_worth(make: Make) -> None:
    assert_linear(refusals_are_fine(pbtxt.parse), make, largest=2**18)


@pytest.mark.parametrize("make", JSONS.values(), ids=JSONS)
@pytest.mark.parametrize("as_patch", [False, True], ids=["config", "patch"])
def test_json_costs_what_its_size_is_worth(make: Make, as_patch: bool) -> None:
    def read(text: str) -> None:
        json_form.patched(TritonConfig(), text) if as_patch else json_form.from_json(text)

    assert_linear(refusals_are_fine(read), make, largest=2**18)


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "0" + "7" * 5000, "9" * 40])
def test_a_number_of_any_length_is_refused_by_its_line(number: str) -> None:
    with pytest.raises(BadConfig, match=r"config\.pbtxt:2: max_batch_size: "):
        pbtxt.parse(f'name: "m"\nmax_batch_size: {number}')


def test_the_number_and_length_of_reported_problems_are_bounded() -> None:
    with pytest.raises(BadConfig) as raised:
        pbtxt.parse("".join(f"{'f' * 1000}{n}: 1\n" for n in range(5000)))
    assert len(raised.value.problems) == MOST_PROBLEMS + 1
    assert raised.value.problems[-1].startswith(f"more than {MOST_PROBLEMS} problems")
    assert len(str(raised.value)) < (MOST_PROBLEMS + 1) * (LONGEST_PROBLEM + 10)


def ensemble(*steps: TritonEnsemblingStep) -> TritonConfig:
    return TritonConfig(platform="ensemble", ensemble_scheduling=TritonEnsembling(step=[*steps]))


def chain(size: int, *, first: int = 0) -> TritonConfig:
    """Each step waits for the one written behind it."""
    steps = [
        TritonEnsemblingStep(
            model_name="m", input_map={"x": f"t{n + 1}"}, output_map={"y": f"t{n}"}
        )
        for n in range(first, size)
    ]
    begin = "t0" if first < 0 else "in"
    last = TritonEnsemblingStep(
        model_name="m", input_map={"x": begin}, output_map={"y": f"t{size}"}
    )
    return ensemble(*steps, last)


@pytest.mark.parametrize("first", [0, -1], ids=["backwards", "a circle"])
def test_finding_circles_costs_what_the_steps_are_worth(first: int) -> None:
    def run(config: TritonConfig) -> None:
        graph_problems(config)

    def make(size: int) -> TritonConfig:
        made = chain(size, first=first)
        made.input = pbtxt.parse('input { name: "in" data_type: TYPE_FP32 dims: [ 1 ] }').input
        return made

    assert_linear(run, make, largest=2**16)


def test_a_step_in_a_circle_is_named_and_one_beside_it_is_not() -> None:
    found = graph_problems(ensemble(
        TritonEnsemblingStep(model_name="a", input_map={"x": "t2"}, output_map={"y": "t1"}),
        TritonEnsemblingStep(model_name="b", input_map={"x": "t1"}, output_map={"y": "t2"}),
        TritonEnsemblingStep(model_name="c", input_map={"x": "t1"}, output_map={"y": "t3"}),
    ))  # fmt: skip
    assert found == ["the steps a, b, c wait for each other's tensors"]


def calls(*names: str) -> TritonConfig:
    return ensemble(*(TritonEnsemblingStep(model_name=name) for name in names))


@pytest.mark.parametrize("last", [False, True])
def test_ensembles_that_share_members_are_looked_at_once(last: bool) -> None:
    """Level by level two ensembles that both call the next two: 2^200 ways to the last."""
    asked: list[str] = []

    def find(name: str) -> TritonConfig | None:
        asked.append(name)
        level = int(name[1:])
        if level == 200:
            return TritonConfig(model_transaction_policy=TritonTransactionPolicy(decoupled=last))
        return calls(f"a{level + 1}", f"b{level + 1}")

    assert decoupled(calls("a0", "b0"), find) is last
    assert len(asked) == len(set(asked)) <= 402


def test_ensembles_that_call_each_other_end() -> None:
    configs = {"a": calls("b"), "b": calls("a")}
    assert not decoupled(configs["a"], configs.get)
