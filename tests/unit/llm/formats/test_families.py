"""llm/formats/families.py: each family's own examples, cut anywhere."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.llm.formats.answer_text import AnswerStyle, AnswerText
from wherry.llm.formats.calls import MessagePart, ToolCall
from wherry.llm.formats.families import (
    THOUGHT_FAMILIES,
    TOOL_FAMILIES,
    thought_family_of,
    tool_family_of,
)

B = "\uff5c"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "detailed": {"type": "boolean"},
        "places": {"type": "array"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "chosen": {"enum": ["1", "2"]},
        "referred": {"$ref": "#/$defs/Letter"},
        "perhaps": {"anyOf": [{"$ref": "#/$defs/Letter"}, {"type": "null"}]},
        "endless": {"$ref": "#/$defs/Endless"},
    },
    "$defs": {"Letter": {"type": "string"}, "Endless": {"$ref": "#/$defs/Endless"}},
}
FUNCTIONS = {"get_weather": WEATHER, "get_time": {}}
PARIS = ("get_weather", {"city": "Paris", "days": 3})
TIME: tuple[str, dict[str, object]] = ("get_time", {})
OBJECT = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
PARAMETERS = OBJECT.replace("arguments", "parameters")
TIME_OBJECT = '{"name": "get_time", "arguments": {}}'
ARGUMENTS = '{"city": "Paris", "days": 3}'
ATEM = (
    '<atem:parameter name="city">Paris</atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>'
)

#: The text, and what is called in it.
EXAMPLES = {
    "hermes": (
        f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{TIME_OBJECT}\n</tool_call>",
        [PARIS, TIME],
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        [PARIS],
    ),
    "seed_oss": (
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        [PARIS],
    ),
    "glm": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>get_time\n</tool_call>",
        [PARIS, TIME],
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>'
        '\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
        "</minimax:tool_call>",
        [PARIS, TIME],
    ),
    # SGLang's tests have the next five: tags that end calls without arguments, objects where others
    # write Python, and marks of Llama 4 around other models' lists.
    "deepseek_v32:closed": (
        f'<{B}DSML{B}function_calls>\n<{B}DSML{B}invoke name="get_weather">\n'
        f'<{B}DSML{B}parameter name="city" string="true">Paris</{B}DSML{B}parameter>\n'
        f'<{B}DSML{B}parameter name="days" string="false">3</{B}DSML{B}parameter>\n'
        f'</{B}DSML{B}invoke>\n<{B}DSML{B}invoke name="get_time"/>\n'
        f'<{B}DSML{B}invoke name="get_time" />\n</{B}DSML{B}function_calls>',
        [PARIS, TIME, TIME],
    ),
    "minimax_m2:closed": (
        '<minimax:tool_call>\n<invoke name="get_weather"><parameter name="city">Paris</parameter>'
        '<parameter name="days">3</parameter></invoke>\n<invoke name="get_time"/>'
        '<invoke name="get_time"></invoke></minimax:tool_call>',
        [PARIS, TIME, TIME],
    ),
    "lfm2:objects": (
        f"<|tool_call_start|>[{OBJECT}, {TIME_OBJECT}]<|tool_call_end|>",
        [PARIS, TIME],
    ),
    "olmo3:objects": (f"<function_calls>{PARAMETERS}</function_calls>", [PARIS]),
    "pythonic:marks": (
        '<|python_start|>[get_weather(city="Paris", days=3), get_time()]<|python_end|>',
        [PARIS, TIME],
    ),
    "deepseek": (
        f"<{B}tool▁calls▁begin{B}><{B}tool▁call▁begin{B}>function<{B}tool▁sep{B}>get_weather\n"
        f"```json\n{ARGUMENTS}\n```<{B}tool▁call▁end{B}>\n<{B}tool▁call▁begin{B}>get_time"
        f"<{B}tool▁sep{B}>{{}}<{B}tool▁call▁end{B}><{B}tool▁calls▁end{B}>",
        [PARIS, TIME],
    ),
    "deepseek_v32": (
        f'<{B}DSML{B}function_calls>\n<{B}DSML{B}invoke name="get_weather">\n'
        f'<{B}DSML{B}parameter name="city" string="true">Paris</{B}DSML{B}parameter>\n'
        f'<{B}DSML{B}parameter name="days" string="false">3</{B}DSML{B}parameter>\n'
        f"</{B}DSML{B}invoke>\n</{B}DSML{B}function_calls>",
        [PARIS],
    ),
    "deepseek_v4": (
        f'<{B}DSML{B}tool_calls>\n<{B}DSML{B}invoke name="get_weather">\n'
        f'<{B}DSML{B}parameter name="city" string="true">Paris</{B}DSML{B}parameter>\n'
        f'<{B}DSML{B}parameter name="days" string="true">3</{B}DSML{B}parameter>\n'
        f"</{B}DSML{B}invoke>\n</{B}DSML{B}tool_calls>",
        [PARIS],
    ),
    "deepseek_v41": (
        f'<{B}DSML{B} calls>\n<{B}DSML{B} invoke name="get_weather">\n'
        f'<{B}DSML{B} parameter name="city" string="true">Paris</{B}DSML{B} parameter>\n'
        f'<{B}DSML{B} parameter name="days" string="false">3</{B}DSML{B} parameter>\n'
        f"</{B}DSML{B} invoke>\n</{B}DSML{B} calls>",
        [PARIS],
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="get_time" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        [PARIS, TIME],
    ),
    "k2_horizon": (
        "<ifm|tool_calls><ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key>"
        "<ifm|arg_value>Paris</ifm|arg_value><ifm|arg_key>days</ifm|arg_key>"
        "<ifm|arg_type>integer</ifm|arg_type><ifm|arg_value>3</ifm|arg_value></ifm|tool_call>\n"
        "<ifm|tool_call>get_time</ifm|tool_call></ifm|tool_calls>",
        [PARIS, TIME],
    ),
    "k2_horizon: json": (
        f"<ifm|tool_calls><ifm|tool_call>{OBJECT}</ifm|tool_call>\n"
        f"<ifm|tool_call>{TIME_OBJECT}</ifm|tool_call></ifm|tool_calls>",
        [PARIS, TIME],
    ),
    "plamo3": (
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
        f"{ARGUMENTS}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        "<|plamo:end_tool_requests:plamo|>",
        [PARIS],
    ),
    "inkling": (
        "<|content_invoke_tool_json|>"
        f"{OBJECT.replace('arguments', 'args')}<|end_message|><|content_invoke_tool_json|>"
        f"{TIME_OBJECT.replace('arguments', 'args')}<|end_message|>",
        [PARIS, TIME],
    ),
    "inkling: names": (
        "<|message_model|>get_weather<|content_invoke_tool_json|>"
        f"{OBJECT.replace('arguments', 'args')}<|end_message|><|message_model|>get_time"
        f"<|content_invoke_tool_json|>{TIME_OBJECT.replace('arguments', 'args')}<|end_message|>",
        [PARIS, TIME],
    ),
    "muse": (
        " to=get_weather.get_weather<|message|><atem:function_calls>\n"
        f'<atem:invoke name="get_weather.get_weather">\n{ATEM}\n</atem:invoke>\n'
        "</atem:function_calls><|eom|><|start|>assistant to=get_time<|message|>"
        '<atem:function_calls><atem:invoke name="get_time">\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>",
        [PARIS, TIME],
    ),
    "dots": (
        '<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">Paris'
        '</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name=get_time>'
        "</invoke>\n</dots_function_call>",
        [PARIS, TIME],
    ),
    "dots: json": (f"<dots_function_call>[{OBJECT}]</dots_function_call>", [PARIS]),
    "ernie45": (f"<tool_call>\n{OBJECT}\n</tool_call>\n", [PARIS]),
    "minicpm5": (
        '<function name="get_weather"><param name="city"><![CDATA[Paris]]></param>'
        '<param name="days">3</param></function>\n<function name="get_time"></function>',
        [PARIS, TIME],
    ),
    "hunyuan3": (
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n"
        "<tool_call:opensource>get_time<tool_sep:opensource></tool_call:opensource>\n"
        "</tool_calls:opensource>",
        [PARIS, TIME],
    ),
    "hunyuan3_preview": (
        "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris"
        "</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call></tool_calls>",
        [PARIS],
    ),
    "hunyuan4": (
        "<tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
        "<tool_call>get_time</tool_call></tool_calls>",
        [PARIS, TIME],
    ),
    "solar_open": (
        f"<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{ARGUMENTS}<|tool_call:end|><|tool_call:begin|>a1b2c3d4e6"
        "<|tool_call:name|>get_time<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        [PARIS, TIME],
    ),
    "gigachat3": (f"<|message_sep|>\n\nfunction call<|role_sep|>\n{OBJECT}", [PARIS]),
    "gigachat3: marked": (f"<|function_call|>{OBJECT}", [PARIS]),
    "functionary_v31": (
        f"<function=get_weather>{ARGUMENTS}</function>\n<function=get_time>{{}}</function>",
        [PARIS, TIME],
    ),
    "step3": (
        f"<{B}tool_calls_begin{B}>\n<{B}tool_call_begin{B}>function<{B}tool_sep{B}>"
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris'
        '</steptml:parameter><steptml:parameter name="days">3</steptml:parameter>'
        f"</steptml:invoke><{B}tool_call_end{B}>\n<{B}tool_calls_end{B}>",
        [PARIS],
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>"
        "functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [PARIS, TIME],
    ),
    "mistral": (f"[TOOL_CALLS][{OBJECT}, {TIME_OBJECT}]", [PARIS, TIME]),
    "mistral: names": (
        f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]get_time[CALL_ID]a1[ARGS]{{}}",
        [PARIS, TIME],
    ),
    "cohere": (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        f"{ARGUMENTS}}}]<|END_ACTION|>",
        [PARIS],
    ),
    "command_r": (
        f'Action: ```json\n[{{"tool_name": "get_weather", "parameters": {ARGUMENTS}}}]\n```',
        [PARIS],
    ),
    "internlm": (f"<|action_start|><|plugin|>\n{PARAMETERS}<|action_end|>", [PARIS]),
    "apertus": (
        f'<|tools_prefix|>[{{"get_weather": {ARGUMENTS}}}, {{"get_time": {{}}}}]<|tools_suffix|>',
        [PARIS, TIME],
    ),
    "lfm2": (
        '<|tool_call_start|>[get_weather(city="Paris", days=3), get_time()]<|tool_call_end|>',
        [PARIS, TIME],
    ),
    "longcat": (f"<longcat_tool_call>\n{OBJECT}\n</longcat_tool_call>", [PARIS]),
    "nemotron": (f"<TOOLCALL>[{OBJECT}, {TIME_OBJECT}]</TOOLCALL>", [PARIS, TIME]),
    "functiongemma": (
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}"
        "<end_function_call>",
        [PARIS],
    ),
    "gemma4": ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>', [PARIS]),
    "gemma4: without its word": (
        '<|tool_call>:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
        [PARIS],
    ),
    "olmo3": (
        '<function_calls>\nget_weather(city="Paris", days=3)\nget_time()\n</function_calls>',
        [PARIS, TIME],
    ),
    "phi4_mini": (f"<|tool_call|>[{OBJECT}]<|/tool_call|>", [PARIS]),
    "phi4_mini: functools": (f"functools[{OBJECT}]", [PARIS]),
    "granite": (f"<|tool_call|>[{OBJECT}, {TIME_OBJECT}]", [PARIS, TIME]),
    "granite_20b": (f"<function_call> {OBJECT}\n<function_call> {TIME_OBJECT}", [PARIS, TIME]),
    "deepseek_v32: json": (
        f'<{B}DSML{B}function_calls>\n<{B}DSML{B}invoke name="get_weather">\n{ARGUMENTS}\n'
        f'</{B}DSML{B}invoke>\n<{B}DSML{B}invoke name="get_time">{{}}</{B}DSML{B}invoke>\n'
        f"</{B}DSML{B}function_calls>",
        [PARIS, TIME],
    ),
    "hunyuan_a13b": (f"<tool_calls>[{OBJECT}]</tool_calls>", [PARIS]),
    "minimax_m1": (f"<tool_calls>\n{OBJECT}\n{TIME_OBJECT}\n</tool_calls>", [PARIS, TIME]),
    "minimax_m1: jamba": (f"<tool_calls>[\n{OBJECT}\n]</tool_calls>", [PARIS]),
    "llama4": ('[get_weather(city="Paris", days=3), get_time()]', [PARIS, TIME]),
    "llama4: marked": (
        '<|python_start|>[get_weather(city="Paris", days=3)]<|python_end|>',
        [PARIS],
    ),
    "llama4: json": (PARAMETERS, [PARIS]),
    "pythonic": ("[get_weather(city='Paris', days=3), get_time()]", [PARIS, TIME]),
    "pythonic: fence": ("```tool_code\nprint(get_weather(city='Paris', days=3))\n```", [PARIS]),
    "llama3": (f"<|python_tag|>{PARAMETERS}; {TIME_OBJECT}", [PARIS, TIME]),
    "llama3: bare": (PARAMETERS, [PARIS]),
    "xlam: fence": (f"```json\n[{OBJECT}]\n```", [PARIS]),
    "qwen3_coder: without its mark": (
        "<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        [PARIS],
    ),
    "xlam": (f"[{OBJECT}, {TIME_OBJECT}]", [PARIS, TIME]),
    "json": (f"[{OBJECT}, {TIME_OBJECT}]", [PARIS, TIME]),
    "json: one": (OBJECT, [PARIS]),
    "harmony": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{ARGUMENTS}<|call|>",
        [PARIS],
    ),
}  # fmt: skip


def read(style: AnswerStyle, *pieces: str, cut: bool = False) -> MessagePart:
    text, whole = AnswerText(style, FUNCTIONS), MessagePart()
    for parts in [*map(text.feed, pieces), text.end(cut=cut)]:
        for said in parts:
            whole.thoughts += said.thoughts
            whole.text += said.text
            whole.calls = joined(whole.calls + said.calls)
    return whole


def joined(pieces: list[ToolCall]) -> list[ToolCall]:
    """The calls that pieces of them make."""
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.name:
            calls.append(piece)
        else:
            last = calls[-1]
            calls[-1] = ToolCall(last.name, last.arguments + piece.arguments, last.id)
    return calls


def called(said: MessagePart) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in said.calls]


def style_of(example: str) -> AnswerStyle:
    return AnswerStyle(tools=example.partition(":")[0])


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_family_s_calls_are_read_whole_in_pieces_and_cut_off(example: str) -> None:
    calls_are_read(example)
    a_call_of_an_unknown_function_is_shown(example)
    a_name_comes_before_the_arguments_are_complete(example)
    no_call_that_is_cut_off_looks_whole(example)
    halves_of_characters_are_no_error(example)


def calls_are_read(example: str) -> None:
    text, calls = EXAMPLES[example]
    said = read(style_of(example), text)
    assert (called(said), said.text.strip()) == (calls, "")
    assert read(style_of(example), *text) == said


def test_each_family_has_an_example_and_each_sign_leads_to_it() -> None:
    assert TOOL_FAMILIES.keys() == {style_of(example).tools for example in EXAMPLES}
    for name, family in TOOL_FAMILIES.items():
        for signs in family.signs or filter(None, [family.marks[:1]]):
            assert tool_family_of("\n".join(signs)) == name
    for name, thoughts in THOUGHT_FAMILIES.items():
        for signs in thoughts.signs or [thoughts.format.marks[0][:1]]:
            assert thought_family_of("\n".join(signs)) == name


def test_special_tokens_tell_where_the_template_does_not() -> None:
    assert tool_family_of("{{ messages }}", ["<|tool_call_start|>"]) == "lfm2"
    assert tool_family_of("<tool_call>", ["<|tool_call_start|>"]) == "hermes"


#: What a model may write that is not a call, or not one of these functions.
STRANGE = [
    "",
    "{",
    "[",
    '{"a": 1}',
    "get_rich()",
    '"',
    "\\",
    "<",
    "<|",
    "```",
    "é\U0001f600",
    "\n",
    " ",
]


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.lists(st.sampled_from(STRANGE), max_size=3),
    st.lists(st.sampled_from(STRANGE), max_size=3),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_the_result_does_not_depend_on_the_cuts(
    example: str, before: list[str], after: list[str], cuts: list[int]
) -> None:
    text = "".join(before) + EXAMPLES[example][0] + "".join(after)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    for thoughts in ("none", "think"):
        style = AnswerStyle(style_of(example).tools, thoughts)
        assert read(style, *pieces) == read(style, text)


TEXTS = st.sampled_from([*STRANGE, "</tool_call>", "}}", "'", "\u2028"]) | st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=16) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from(sorted(name for name in EXAMPLES if ARGUMENTS in EXAMPLES[name][0])),
    st.dictionaries(st.text("abc", min_size=1, max_size=3) | st.just("city"), VALUES, max_size=4),
    st.booleans(),
    st.integers(1, 40),
)
def test_any_arguments_in_json_are_read_however_they_are_cut(
    example: str, arguments: dict[str, object], ascii_: bool, size: int
) -> None:
    text, calls = EXAMPLES[example]
    text = text.replace(ARGUMENTS, json.dumps(arguments, ensure_ascii=ascii_))
    said = read(style_of(example), text)
    assert called(said) == [("get_weather", arguments), *calls[1:]]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert read(style_of(example), *pieces) == said


@given(st.sampled_from(sorted(EXAMPLES)), st.integers(0, 400), st.integers(0, 400))
def test_a_part_of_an_example_is_read_without_an_error(example: str, one: int, two: int) -> None:
    text = EXAMPLES[example][0]
    left, right = sorted((min(one, len(text)), min(two, len(text))))
    style = style_of(example)
    assert read(style, text[left:right]) == read(style, *text[left:right])


def a_call_of_an_unknown_function_is_shown(example: str) -> None:
    text = EXAMPLES[example][0].replace("get_weather", "get_rich").replace("get_time", "get_old")
    said = read(style_of(example), text)
    assert not said.calls
    assert "get_rich" in said.text or "harmony" in example


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        ("Paris", "Paris"),
        ("3", "3"),  # a text, as its schema says
        ("\nline 1\nline 2\n", "line 1\nline 2"),
        ("a </tool_call> b", "a </tool_call> b"),
        ("a <tool_call> b", "a <tool_call> b"),
        ("a </function> b", "a </function> b"),
        ('say "hi" \\ {', 'say "hi" \\ {'),
        ("é\U0001f600", "é\U0001f600"),
        ("", ""),
        ("  def f():\n    pass\n", "  def f():\n    pass\n"),
        ("a <parameter=x> b", "a <parameter=x> b"),
        ("<![CDATA[a </x>]]>", "a </x>"),
    ],
)
def test_texts_in_tags_are_taken_as_they_are(value: str, argument: str) -> None:
    text = (
        "<tool_call><function=get_weather><parameter=city>" + value + "</parameter></function>"
        "</tool_call>"
    )
    said = read(AnswerStyle("qwen3_coder"), text)
    assert called(said) == [("get_weather", {"city": argument})]


@pytest.mark.parametrize(
    ("name", "value", "argument"),
    [
        ("detailed", "True", True),
        ("detailed", "false", False),
        ("days", " 3 ", 3),
        ("days", "three", "three"),
        ("days", "007", 7),
        ("places", '["a", {"b": null}]', ["a", {"b": None}]),
        ("places", r"[{\"a\": \"1\"}]", [{"a": "1"}]),
        ("places", r'["a\"b"]', ['a"b']),
        ("city", r"{\"a\": 1}", r"{\"a\": 1}"),
        ("maybe", "12", "12"),
        ("maybe", "None", None),
        ("either", "12", "12"),
        ("either", "null", None),
        ("chosen", "1", "1"),
        ("referred", "1", "1"),
        ("perhaps", "1", "1"),
        ("perhaps", "null", None),
        ("endless", "1", 1),
        ("unknown", "[1]", [1]),
        ("unknown", "None", None),
        ("unknown", "[1", "[1"),
    ],
)
def test_other_values_in_tags_are_json_if_they_are(name: str, value: str, argument: object) -> None:
    text = (
        f"<tool_call>get_weather<arg_key>{name}</arg_key><arg_value>{value}</arg_value></tool_call>"
    )
    assert called(read(AnswerStyle("glm"), text)) == [("get_weather", {name: argument})]


@pytest.mark.parametrize(
    "text",
    [
        "[get_weather('Paris')]",
        "[get_weather(**{})]",
        "[get_weather(city=open('x'))]",
        "[get_weather(city=1j)]",
        "[get_weather(days=float('nan'))]",
        "[get_weather(city=b'a')]",
        "[import os]",
        "[" * 5000,
        "[get_weather(days=" + "-" * 5000 + "1)]",
        "[get_weather(days=" + "1" * 5000 + ")]",
        "[get_weather(city='\\ud800')]",
        "[" + "get_time()," * 20_000 + "]",
    ],
)  # fmt: skip
def test_python_that_is_no_call_with_literals_is_shown(text: str) -> None:
    said = read(AnswerStyle("pythonic"), text)
    assert not said.calls or "ud800" in text
    assert said.text == ("" if said.calls else text)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("get_weather(places={'a', 'b'})", {"places": ["a", "b"]}),
        ("get_weather(days=07)", {"days": 7}),
        ("get_weather(city='a\0b')", {"city": "a\0b"}),
        (
            "get_weather(city='cat <<EOF\na = 1\nEOF', days=3)",
            {"city": "cat <<EOF\na = 1\nEOF", "days": 3},
        ),
        (
            "get_weather(city='sed -n '1,5p' a.py', days=3)",
            {"city": "sed -n '1,5p' a.py", "days": 3},
        ),
        (
            'get_weather(city="say "hi" to \'me\'", days=0)',
            {"city": "say \"hi\" to 'me'", "days": 0},
        ),
        ("get_weather(places=['it's', 'a'], days=3)", {"places": ["it's", "a"], "days": 3}),
    ],
)
def test_texts_that_python_would_refuse_are_meant_as_they_stand(
    call: str, arguments: dict[str, object]
) -> None:
    assert called(read(AnswerStyle("lfm2"), f"<|tool_call_start|>[{call}]<|tool_call_end|>")) == [
        ("get_weather", arguments)
    ]


@pytest.mark.parametrize("family", ["pythonic", "llama4"])
@pytest.mark.parametrize("city", ["Paris", "a ] b", "it's", 'say \\"hi\\"', "[get_time()]"])
def test_a_list_of_calls_may_stand_behind_text(family: str, city: str) -> None:
    text = f'I look: [get_time(), get_weather(city="{city}", days=3)] Then [1] or [x(y)].'
    for pieces in ([text], list(text)):
        said = read(AnswerStyle(family), *pieces)
        weather = ("get_weather", {"city": city.replace("\\", ""), "days": 3})
        assert called(said) == [TIME, weather]
        assert said.text.split() == ["I", "look:", "Then", "[1]", "or", "[x(y)]."]


@pytest.mark.parametrize("text", ["Use [get_weather(city)] or [get_time(].", "I [get_rich()]."])
def test_what_only_looks_like_a_list_of_calls_behind_text_is_shown(text: str) -> None:
    for pieces in ([text], list(text)):
        said = read(AnswerStyle("pythonic"), *pieces)
        assert (said.text, said.calls) == (text, [])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_key_without_a_value_is_left_out(size: int) -> None:
    key = "<arg_key>city</arg_key>"
    days = "<arg_key>days</arg_key>\n<arg_value>3</arg_value>"
    text = (
        f"<tool_call>get_weather\n{key}</tool_call><tool_call>get_weather\n{key}\n{days}"
        f"</tool_call><tool_call>get_weather\n{days}{key}</tool_call>"
    )
    said = read(AnswerStyle("glm"), *[text[at : at + size] for at in range(0, len(text), size)])
    arguments = [{}, {"days": 3}, {"days": 3}]
    assert called(said) == [("get_weather", one) for one in arguments]


@pytest.mark.parametrize("family", ["kimi_k2", "deepseek", "plamo3", "solar_open"])
def test_what_stands_beside_calls_between_their_marks_is_left_out(family: str) -> None:
    format_ = TOOL_FAMILIES[family].format
    assert format_ is not None
    ((begin, end),) = format_.marks
    text, calls = EXAMPLES[family]
    noisy = text.replace(begin, f"{begin} Now: ").replace(end, f" So. {end} Done.")
    for pieces in ([noisy], list(noisy)):
        said = read(AnswerStyle(family), *pieces)
        assert (called(said), said.text) == (calls, " Done.")
    without = f"{begin} Now: {end} Done."
    assert read(AnswerStyle(family), *without).text == without


def test_a_list_of_calls_may_follow_thoughts_that_the_template_does_not_know() -> None:
    text = f"<think>I help.</think>[{OBJECT}]"
    for pieces in ([text], list(text)):
        said = read(AnswerStyle("xlam"), *pieces)
        assert (called(said), said.text) == ([PARIS], "<think>I help.")
        said = read(AnswerStyle("xlam", "think"), *pieces)
        assert (called(said), said.thoughts, said.text) == ([PARIS], "I help.", "")
    assert (
        read(AnswerStyle("xlam"), "<think>I help.</think>No.").text == "<think>I help.</think>No."
    )


@pytest.mark.parametrize("family", ["llama3", "granite", "phi4_mini"])
def test_text_may_follow_calls_that_no_mark_ends(family: str) -> None:
    before, after = {
        "llama3": ("", ""),
        "granite": ("<|tool_call|>", ""),
        "phi4_mini": ("functools[", "]"),
    }[family]
    text = f"Here: {before}{OBJECT}{after} More?"
    for pieces in ([text], list(text)):
        said = read(AnswerStyle(family), *pieces)
        assert (called(said), said.text.split()) == ([PARIS], ["Here:", "More?"])


@pytest.mark.parametrize(
    "wrapped", [f'{{"arguments": {ARGUMENTS}}}', json.dumps({"input": ARGUMENTS})]
)
def test_arguments_within_a_member_that_no_function_has_are_taken_out(wrapped: str) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {wrapped}}}</tool_call>'
    assert called(read(AnswerStyle(), text)) == [PARIS]


def test_a_model_s_own_names_of_calls_are_kept() -> None:
    said = read(AnswerStyle("kimi_k2"), EXAMPLES["kimi_k2"][0])
    assert [call.id for call in said.calls] == ["functions.get_weather:0", "functions.get_time:1"]


def test_arguments_are_the_model_s_own_json() -> None:
    arguments = r'{"x": 1.0, "y": 123456789012345678901234567890, "z": "\n é"}'
    text = f'<tool_call>{{"name": "get_time", "arguments": {arguments}}}</tool_call>'
    assert read(AnswerStyle(), text).calls[0].arguments == arguments


WHOLE = {
    "k2_horizon: json",
    "dots: json",
    "lfm2",
    "functiongemma",
    "gemma4",
    "olmo3",
    "pythonic",
    "llama4",
    "command_r",
}


def a_name_comes_before_the_arguments_are_complete(example: str) -> None:
    text, calls = EXAMPLES[example]
    if style_of(example).tools in WHOLE - {example} or example.endswith("without its mark"):
        return
    reader = AnswerText(style_of(example), FUNCTIONS)
    assert calls[0] == PARIS
    at = text.index("3", text.index("days"))
    pieces = [p for said in reader.feed(text[:at]) for p in said.calls]
    if example in WHOLE:
        assert not pieces or example == "command_r"
        return
    assert pieces[0].name == "get_weather"
    assert pieces[0].arguments == ""
    so_far = "".join(piece.arguments for piece in pieces)
    assert "Paris" in so_far
    assert not so_far.endswith("}")


def no_call_that_is_cut_off_looks_whole(example: str) -> None:
    """An argument that is cut off is not handed on as if it were complete."""
    text, calls = EXAMPLES[example]
    for at in range(len(text)):
        said = read(style_of(example), text[:at], cut=True)
        for call in said.calls:
            try:
                whole = (call.name, json.loads(call.arguments))
            except ValueError:
                continue
            assert whole in calls


def test_slips_within_arguments_that_have_one_meaning_are_mended() -> None:
    text = (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb", "detailed": True, '
        '"maybe": None}}</tool_call>'
    )
    for pieces in ([text], list(text)):
        assert called(read(AnswerStyle(), *pieces)) == [
            ("get_weather", {"city": "a\nb", "detailed": True, "maybe": None})
        ]


def halves_of_characters_are_no_error(example: str) -> None:
    text = EXAMPLES[example][0].replace("Paris", "P\udfffs")
    for pieces in ([text], list(text)):
        said = read(style_of(example), *pieces)
        assert called(said)[0] == ("get_weather", {"city": "P?s", "days": 3})


HOSTILE: dict[str, Callable[[str, str], str]] = {
    "marks": lambda begin, end: begin * 5_000,
    "ends": lambda begin, end: f'{begin}{{"name": "get_time", "arguments": {{"a": "' + end * 5_000,
    "empty": lambda begin, end: (begin + end) * 3_000,
    "deep": lambda begin, end: f'{begin}{{"name": "get_time", "arguments": {{"a": ' + "[" * 100_000,
    "quotes": lambda begin, end: begin + '"' * 100_000 + end,
    "parts": lambda begin, end: begin[:-1] * 5_000,
    "words": lambda begin, end: (
        f'{begin}{{"name": "get_time", "arguments": {{"a": ' + "x" * 100_000
    ),
    "blanks": lambda begin, end: begin + " " * 100_000 + end,
    "blanks again": lambda begin, end: (begin + " " * 1000 + "{") * 100,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("family", ["qwen3_coder", "glm", "mistral", "kimi_k2", "llama3", "step3"])
def test_what_a_hostile_model_writes_costs_no_more_than_its_length(family: str, kind: str) -> None:
    """Were anything searched again with each piece, this would take minutes."""
    format_ = TOOL_FAMILIES[family].format
    assert format_ is not None
    text = HOSTILE[kind](*format_.marks[0])
    began = process_time()
    read(AnswerStyle(family, "think"), *[text[at : at + 16] for at in range(0, len(text), 16)])
    assert process_time() - began < 4


def test_a_long_call_in_small_pieces_is_searched_once() -> None:
    """Were it searched again with each piece, this would take minutes."""
    long = "x" * 100_000
    text = f'<tool_call>{{"name": "get_time", "arguments": {{"a": "{long}"}}}}</tool_call>'
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    assert len(read(AnswerStyle(), *pieces).calls[0].arguments) > 100_000


# Thoughts


@pytest.mark.parametrize(
    ("family", "opened", "text", "thoughts", "answer"),
    [
        ("think", False, "<think>\nHm.\n</think>\n\nYes.", "Hm.\n", "Yes."),
        ("think", True, "Hm.\n</think>\n\nYes.", "Hm.\n", "Yes."),
        ("think", True, "<think>\nHm.</think>Yes.", "Hm.", "Yes."),
        ("think", False, "Yes, <think>.", "", "Yes, <think>."),
        ("think", False, "  Yes.", "", "  Yes."),
        ("think", False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("think", True, "Hm", "Hm", ""),
        ("think", True, "Hm </thin", "Hm </thin", ""),
        ("think", False, "<thin", "", "<thin"),
        ("think", False, " </think>\nYes.", "", "Yes."),
        ("think", False, "Yes </think>.", "", "Yes </think>."),
        ("think", False, "</thin", "", "</thin"),
        ("think", False, "<think>", "", ""),
        ("think", False, "", "", ""),
        ("gemma4", False, "<|channel>thought\nHm.<channel|>Yes.", "Hm.", "Yes."),
        ("gemma4", False, "<|channel>Thus.<channel|>Yes.", "Thus.", "Yes."),
        ("gemma4", False, "<|channel>thousands<channel|>Yes.", "thousands", "Yes."),
        ("gemma4", False, "<|channel>thou", "thou", ""),
        ("k2_horizon", False, "<ifm|think>Hm.</ifm|think>Yes.", "Hm.", "Yes."),
        ("k2_horizon", False, "<ifm|think_fast>Hm.</ifm|think_fast>Yes.", "Hm.", "Yes."),
        ("k2_horizon", True, "Hm.</ifm|think_faster>Yes.", "Hm.", "Yes."),
        ("harmony", False, "<|channel|>analysis<|message|>Hm.<|end|>{}", "Hm.", "{}"),
        ("hunyuan3", False, "<think:opensource>Hm.</think:opensource>Yes.", "Hm.", "Yes."),
        ("minimax_m3", False, "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
        ("mistral", False, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("cohere", False, "<|START_THINKING|>Hm.<|END_THINKING|>Yes.", "Hm.", "Yes."),
        ("seed_oss", False, "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
        (
            "granite",
            False,
            "Here is my thought process:\nHm.\nHere is my response: Yes.",
            "Hm.\n",
            "Yes.",
        ),
    ],
)
def test_thoughts_are_told_from_the_answer(
    family: str, opened: bool, text: str, thoughts: str, answer: str
) -> None:
    style = AnswerStyle("hermes", family, opened)
    for pieces in ([text], list(text), re.findall(r"(?s).{1,4}", text)):
        said = read(style, *pieces)
        assert (said.thoughts, said.text) == (thoughts, answer)


@pytest.mark.parametrize(
    ("style", "text", "thoughts"),
    [
        (
            AnswerStyle("kimi_k3", "kimi_k3", opened=True),
            "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
            "<|close|>message<|sep|>",
            "Hm.",
        ),
        (
            AnswerStyle("inkling", "inkling"),
            "<|content_thinking|>Hm.<|end_message|><|content_text|>Yes.<|end_message|>",
            "Hm.",
        ),
        (
            AnswerStyle("hunyuan_a13b", "think"),
            "<think>\nHm.</think>\n<answer>\nYes.\n</answer>",
            "Hm.",
        ),
        (
            AnswerStyle("ernie45", "think"),
            "<think>Hm.</think><response>\nYes.\n</response>\n",
            "Hm.",
        ),
    ],
)
def test_marks_around_what_is_said_are_left_out(
    style: AnswerStyle, text: str, thoughts: str
) -> None:
    for functions in (FUNCTIONS, {}):
        for pieces in ([text], list(text)):
            reader = AnswerText(style, functions)
            said = [one for parts in [*map(reader.feed, pieces), reader.end()] for one in parts]
            assert "".join(one.thoughts for one in said) == thoughts
            assert "".join(one.text for one in said).strip() == "Yes."


def test_calls_follow_thoughts_and_none_are_within() -> None:
    call = f"<tool_call>{TIME_OBJECT}</tool_call>"
    said = read(AnswerStyle("hermes", "think"), f"<think>{call}</think>Well. {call}")
    assert (said.thoughts, said.text, called(said)) == (call, "Well.", [TIME])


@pytest.mark.parametrize(
    ("text", "thoughts", "answer", "calls"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
            "Yes.<|return|>",
            "Hm.", "Yes.", [],
        ),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
            f"<|message|>Wait.<|end|><|start|>assistant to=functions.get_weather<|channel|>"
            f"commentary json<|message|>{ARGUMENTS}",
            "Hm.", "Wait.", [PARIS],
        ),
        ("<|channel|>final<|message|>Yes", "", "Yes", []),
        ("<|channel|>final", "", "", []),
        ('{"a": 1}', "", '{"a": 1}', []),
        ("assistants help", "", "assistants help", []),
    ],
)  # fmt: skip
def test_channels_of_harmony(
    text: str, thoughts: str, answer: str, calls: list[tuple[str, object]]
) -> None:
    for pieces in ([text], list(text)):
        said = read(AnswerStyle("harmony"), *pieces)
        assert (said.thoughts, said.text, called(said)) == (thoughts, answer, calls)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "inkling",
            "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes."
            "<|end_message|><|content_thinking|> Hm?<|end_message|><|content_text|> No.",
        ),
        (
            "muse",
            " to=self<|message|>Hm.<|eom|><|start|>assistant to=commentary<|message|>Yes.<|eom|>"
            "<|start|>assistant to=developer<|message|>Psst.<|eom|><|start|>assistant<|message|>"
            " Hm?<|eom|><|start|>assistant to=user<|message|> No.<|eot|>",
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>Yes.<|end|><|start|>assistant<|channel|>analysis<|message|> Hm?<|end|>"
            "<|start|>assistant<|channel|>final<|message|> No.<|return|>",
        ),
    ],
)
def test_thoughts_and_text_may_alternate_in_messages(family: str, text: str) -> None:
    for pieces in ([text], list(text)):
        said = read(AnswerStyle(family), *pieces)
        assert (said.thoughts, said.text, said.calls) == ("Hm. Hm?", "Yes. No.", [])


@pytest.mark.parametrize("family", ["inkling", "muse", "harmony"])
def test_a_header_that_has_no_end_is_said_after_a_while(family: str) -> None:
    """An answer that is not in messages is not kept until its end."""
    begin = {"inkling": "<|message_model|>"}.get(family, "<|start|>")
    said = AnswerText(AnswerStyle(family), FUNCTIONS).feed(begin + "x" * 2000)
    assert "x" * 1000 in "".join(one.text for one in said)


def test_a_call_that_was_drafted_in_a_message_of_thoughts_is_none() -> None:
    invoke = '<atem:function_calls><atem:invoke name="get_time"></atem:invoke>'
    said = read(AnswerStyle("muse"), f" to=self<|message|>{invoke}<|eom|>")
    assert (said.thoughts, said.calls) == (invoke, [])
