"""Which families of models write calls and thoughts, and how is a family known?

A table only. A chat template shows the model how to write calls, so its marks name the family.
Sources: the models' chat templates and model cards.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from wherry.llm.formats import call_writer
from wherry.llm.formats.call_text import CallFormat
from wherry.llm.formats.call_writer import CallGrammar, CallWriter, Strict, TagTemplates, is_sign
from wherry.llm.formats.calls import CallReader
from wherry.llm.formats.chat_messages import Kind, MessageFormat
from wherry.llm.formats.json_calls import (
    NAMED_OBJECTS,
    OBJECTS,
    after_names,
    end_of_objects,
    first_of,
    named_shape,
    objects_or,
    of_objects,
    pieces_of,
    with_quotes,
)
from wherry.llm.formats.python_calls import end_of_python, of_python
from wherry.llm.formats.tag_calls import TagPieces, Tags, values_in_tags
from wherry.llm.formats.thoughts import ThoughtFormat


@dataclass(frozen=True, slots=True)
class ToolFamily:
    models: str
    #: None: its answers are `messages`, which also hold thoughts.
    format: CallFormat | None
    #: Alternatives: the family's chat templates have all texts of one of them. (): the first of its
    #: marks.
    signs: tuple[tuple[str, ...], ...] = ()
    #: Marks within the calls, which may be special tokens.
    inner: tuple[str, ...] = ()
    messages: MessageFormat | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        if self.messages is not None:
            return self.messages.marks
        if self.format is None:
            return self.inner
        return (*(mark for pair in self.format.marks for mark in pair if mark), *self.inner)

    def is_of(self, template: str) -> bool:
        signs = self.signs
        if not signs and self.format is not None:
            signs = tuple((begin,) for begin, _ in self.format.marks[:1])
        return _has(template, signs)

    @property
    def ends_thoughts(self) -> tuple[tuple[str, str], ...]:
        """The marks that also end thoughts which have no end: not those that are words or
        Markdown, which thoughts may have for other reasons."""
        marks = self.format.marks if self.format is not None else ()
        return tuple(pair for pair in marks if is_sign(pair[0]))

    def grammar(self, functions: Strict, marks: Mapping[str, int]) -> CallGrammar | None:
        """The grammar of calls of these functions; None: it is not known in this notation.
        `marks`: the tokens that are not text."""
        known = self.messages or self.format
        if known is None or known.grammar is None:
            return None
        writer = CallWriter(functions, marks)
        return writer.written(known.grammar(writer))


def _tagged(
    marks: tuple[str, str] | None,
    call: str,
    call_end: str,
    argument: str,
    argument_end: str,
    *,
    written: tuple[str, str] | None = None,
    inline: str = "",
    orphan: str = "",
    otherwise: CallReader | None = None,
) -> CallFormat:
    """Calls in tags; `written`: templates of what begins a call and an argument, for a grammar;
    `orphan` as of `Tags`; `inline`: what begins a call where there are no marks around it;
    `otherwise` reads what is between the marks and has no tags."""
    tags = Tags(call, call_end, argument, argument_end, orphan)
    ends = [end for end in (argument_end, call_end) if end]
    return CallFormat(
        first_of(tags.read, otherwise) if otherwise else tags.read,
        (marks,) if marks else (),
        ((inline, call_end),) if inline else (),
        values=values_in_tags(argument, *ends),
        pieces=partial(TagPieces, tags),
        delimited=False,
        opens=(inline,) if inline and not otherwise else (),
        grammar=call_writer.of_tags(
            TagTemplates(*written, argument_end, call_end),
            (marks,) if marks else (),
            re.escape(inline),
        )
        if written
        else None,
    )


def _named(
    head: str,
    tail: str = "",
    *,
    written: tuple[str, ...],
    marks: tuple[tuple[str, str], ...] = (),
    inline: tuple[tuple[str, str], ...] = (),
) -> CallFormat:
    """Calls that are a name and the JSON of its arguments; `written`:
    templates of them."""
    return CallFormat(
        after_names(head, tail, noise=bool(marks)),
        marks,
        inline,
        pieces=pieces_of(named_shape(head, tail)),
        grammar=call_writer.of_names(
            written, marks, "|".join(re.escape(begin) for begin, _ in inline)
        ),
    )


def _hunyuan(suffix: str, separator: str) -> CallFormat:
    """`separator`: what is between a function's name and its arguments."""
    behind = rf"\s*{separator}" if separator else ""
    return _tagged(
        (f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        rf"<tool_call{suffix}>\s*(?P<name>[^\s<]+){behind}",
        f"</tool_call{suffix}>",
        rf"<arg_key{suffix}>(?P<key>[^<]*)</arg_key{suffix}>\s*<arg_value{suffix}>",
        f"</arg_value{suffix}>",
        written=(
            f"<tool_call{suffix}>{{name}}{separator}",
            f"<arg_key{suffix}>{{key}}</arg_key{suffix}>[[\n]]<arg_value{suffix}>",
        ),
        orphan=f"<arg_key{suffix}>[^<]*</arg_key{suffix}>",
    )


def _dsml(marks: str, space: str = "") -> CallFormat:
    dsml = _DSML + space
    return _tagged(
        (f"<{dsml}{marks}>", f"</{dsml}{marks}>"),
        rf'<{dsml}invoke name="(?P<name>[^"]+)"{_CLOSED}',
        f"</{dsml}invoke>",
        rf'<{dsml}parameter name="(?P<key>[^"]+)"(?: string="(?P<string>\w+)")?>',
        f"</{dsml}parameter>",
        written=(
            f'<{dsml}invoke name="{{name}}">',
            f'<{dsml}parameter name="{{key}}" string="{{string}}">',
        ),
        inline=f"<{dsml}invoke name=",
    )


def _python(*marks: tuple[str, str], bare: tuple[str, ...] = ()) -> CallFormat:
    """Calls as Python's, or objects. A list of calls may stand behind text if it may be `bare`."""
    read = objects_or(of_python, ("{", "[{"))
    return CallFormat(
        read,
        marks,
        bare=bare,
        named=(("[{}(", ""),) if bare else (),
        values=None,
        cut=end_of_python if bare else None,
        pieces=pieces_of(OBJECTS),
    )


def _quoted(quote: str, marks: tuple[str, str]) -> CallFormat:
    toggle = re.compile(f"(?P<toggle>{re.escape(quote)})")
    return CallFormat(with_quotes(quote), (marks,), values=toggle)


def _json(
    *marks: tuple[str, str], bare: tuple[str, ...] = (), inline: tuple[str, ...] = ()
) -> CallFormat:
    within = tuple((begin, "") for begin in inline)
    return CallFormat(
        of_objects,
        marks,
        within,
        bare,
        cut=end_of_objects,
        pieces=pieces_of(OBJECTS),
        opens=("{", "[", "```"),
        grammar=call_writer.of_objects(marks, bare, inline=bool(inline)),
    )


#: The wide vertical line in marks of DeepSeek and Step.
_BAR: Final = "\uff5c"
_DSML: Final = f"{_BAR}DSML{_BAR}"
#: The end of a tag that may be the call's, too.
_CLOSED: Final = r"\s{0,8}(?P<closed>/)?>"


#: What the marks of PLaMo begin and end with: tokens of their own.
_PLAMO: Final = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>")


def _plamo(name: str) -> str:
    return rf"<\|plamo:{name}:plamo\|>"


def _wide(name: str) -> str:
    return f"<{_BAR}{name}{_BAR}>"


#: DeepSeek's: what a call begins with, what divides it, and its end.
_BEGIN, _SEP, _END = (_wide(f"tool▁{name}") for name in ("call▁begin", "sep", "call▁end"))
_MISTRAL: Final = (
    r"(?:\[TOOL_CALLS\]\s*)?(?P<name>[^\s\[{]+)(?:\s*\[CALL_ID\][^\s\[{]*)?(?:\s*\[ARGS\])?"
)
_MISTRAL_NAMES: Final = (
    "{name}[ARGS]{arguments}",
    "{name}[CALL_ID]{id}[ARGS]{arguments}",
    "{name}{arguments}",
)
_OBJECT: Final = ("{",)
_OBJECTS: Final = ("{", "[")
_XLAM: Final = _json(
    ("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", ""), ("```json\n", "```"), bare=_OBJECTS
)


def _harmony_kind(header: str) -> tuple[Kind, str]:
    """OpenAI's harmony response format: a call has its recipient, all else a channel."""
    if recipient := re.search(r"to=(?:functions\.)?([^\s<]+)", header):
        return "call", f"{recipient[1]} "
    return ("thoughts" if "analysis" in header else "text"), ""


def _muse_kind(header: str) -> tuple[Kind, str]:
    """Muse's: each message has a recipient, itself where it thinks."""
    found = re.search(r"to=([\w.-]+)", header)
    to = found[1] if found else "self"
    kinds: Mapping[str, Kind] = {
        "self": "thoughts", "user": "text", "commentary": "text", "developer": "none"
    }  # fmt: skip
    return kinds.get(to, "call"), ""


def _inkling_kind(header: str) -> tuple[Kind, str]:
    """Inkling's: each message has its kind; before that a call has its function's name, too."""
    if header.endswith("_thinking|>"):
        return "thoughts", ""
    return ("call" if header.endswith("_invoke_tool_json|>") else "text"), ""


_HARMONY_CALL: Final = r"(?P<name>[^\s<]+) "
_HARMONY_MESSAGES: Final = MessageFormat(
    ("<|", "assistant", "to="),
    re.compile(r"<\|message\|>"),
    ("<|end|>", "<|call|>", "<|return|>", "<|start|>"),
    _harmony_kind,
    after_names(_HARMONY_CALL),
    pieces_of(named_shape(_HARMONY_CALL)),
    ("<|message|>", "<|channel|>", "<|constrain|>"),
    grammar=call_writer.of_harmony,
)
_MUSE_TAGS: Final = Tags(
    r'(?:<atem:function_calls>\s*)?<atem:invoke\s[^>]*?name="(?P<name>[^"]+)"[^>]*>',
    "</atem:invoke>",
    r'<atem:parameter\s[^>]*?name="(?P<key>[^"]+)"[^>]*>',
    "</atem:parameter>",
)
_MUSE_MESSAGES: Final = MessageFormat(
    ("<|", "to=", "assistant"),
    re.compile(r"<\|message\|>"),
    ("<|eom|>", "<|eot|>", "<|start|>"),
    _muse_kind,
    _MUSE_TAGS.read,
    partial(TagPieces, _MUSE_TAGS),
    ("<|message|>",),
    "</atem:function_calls>",
)
_INKLING_MESSAGES: Final = MessageFormat(
    ("<|message_model|>", "<|content_"),
    re.compile(r"<\|content_\w+\|>"),
    ("<|end_message|>", "<|content_model_end_sampling|>", "<|message_model|>"),
    _inkling_kind,
    of_objects,
    pieces_of(OBJECTS),
    tuple(
        f"<|content_{kind}|>"
        for kind in ("thinking", "text", "invoke_tool_json", "invoke_tool_text", "tool_error")
    ),
)

#: The default where a template shows no family: Hermes' marks, or bare objects.
DEFAULT: Final = "hermes"
#: The form of a call that a grammar forces, whatever the model's own form is.
FORCED: Final = "json"

#: In the order in which their signs are looked for.
TOOL_FAMILIES: Final[Mapping[str, ToolFamily]] = {
    "harmony": ToolFamily(
        "gpt-oss", None, (("<|channel|>", "<|message|>"),), messages=_HARMONY_MESSAGES
    ),
    "muse": ToolFamily(
        "Muse Spark, Muse Glimmer", None, (("<atem:function_calls>",),), messages=_MUSE_MESSAGES
    ),
    "deepseek_v32": ToolFamily(
        "DeepSeek V3.2", _dsml("function_calls"), ((_DSML, "function_calls>"),)
    ),
    "deepseek_v41": ToolFamily("DeepSeek V4.1", _dsml("calls", " "), ((_DSML, " calls>"),)),
    "deepseek_v4": ToolFamily("DeepSeek V4", _dsml("tool_calls"), ((_DSML,),)),
    "deepseek": ToolFamily(
        "DeepSeek V3, V3.1, R1",
        _named(
            rf"{_BEGIN}(?:function{_SEP})?(?P<name>[^<\n]+)(?:{_SEP}|\n```json\n)",
            rf"(?:```\s*)?(?:{_END})?",
            written=(
                f"{_BEGIN}{{name}}{_SEP}{{arguments}}{_END}",
                f"{_BEGIN}function{_SEP}{{name}}\n```json\n{{arguments}}\n```{_END}",
            ),
            marks=((_wide("tool▁calls▁begin"), _wide("tool▁calls▁end")),),
        ),
        inner=(_BEGIN, _SEP, _END),
    ),
    "kimi_k2": ToolFamily(
        "Kimi K2",
        _named(
            r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^:<\s]+)(?::\d+)?)\s*"
            r"<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>",
            written=(
                "<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{arguments}"
                "<|tool_call_end|>",
            ),
            marks=(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
        ),
        inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    "kimi_k3": ToolFamily(
        "Kimi K3",
        replace(
            _tagged(
                ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
                r'<\|open\|>call tool="(?P<name>[^"]+)"[^<]*<\|sep\|>',
                "<|close|>call<|sep|>",
                r'<\|open\|>argument key="(?P<key>[^"]*)"(?: type="(?P<string>\w+)")?[^<]*'
                r"<\|sep\|>",
                "<|close|>argument<|sep|>",
            ),
            dropped=(
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>message<|sep|>",
            ),
        ),
        (("<|open|>", "<|close|>", "<|sep|>"),),
        ("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "k2_horizon": ToolFamily(
        "K2 Horizon",
        _tagged(
            ("<ifm|tool_calls>", "</ifm|tool_calls>"),
            r"<ifm\|tool_call>\s*(?P<name>[^\s<{]+)",
            "</ifm|tool_call>",
            r"<ifm\|arg_key>(?P<key>[^<]*)</ifm\|arg_key>\s*"
            r"(?:<ifm\|arg_type>(?P<string>[^<]*)</ifm\|arg_type>\s*)?<ifm\|arg_value>",
            "</ifm|arg_value>",
            otherwise=after_names(
                r'<ifm\|tool_call>\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"arguments"\s*:',
                r"\}\s*</ifm\|tool_call>",
            ),
        ),
        inner=tuple(
            f"<{end}ifm|{name}>"
            for name in ("tool_call", "arg_key", "arg_type", "arg_value")
            for end in ("", "/")
        ),
    ),
    "plamo3": ToolFamily(
        "PLaMo 3",
        _named(
            rf"{_plamo('begin_tool_request')}\s*{_plamo('begin_tool_name')}(?P<name>[^<]+)"
            rf"{_plamo('end_tool_name')}\s*{_plamo('begin_tool_arguments')}"
            r"<\|plamo:constrain\|>json<\|plamo:msg\|>",
            rf"{_plamo('end_tool_arguments')}\s*{_plamo('end_tool_request')}",
            written=(
                "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}"
                "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
                "<|plamo:constrain|>json<|plamo:msg|>{arguments}"
                "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
            ),
            marks=(
                (
                    "<|plamo:begin_tool_requests:plamo|>",
                    "<|plamo:end_tool_requests:plamo|>",
                ),
            ),
        ),
        inner=(*_PLAMO, "<|plamo:constrain|>", "<|plamo:msg|>"),
    ),
    "inkling": ToolFamily(
        "Inkling", None, (("<|content_invoke_tool_json|>",),), messages=_INKLING_MESSAGES
    ),
    "dots": ToolFamily(
        "dots.llm",
        _tagged(
            ("<dots_function_call>", "</dots_function_call>"),
            r'<invoke\s+name\s*=\s*"?(?P<name>[^">]+)"?\s*>',
            "</invoke>",
            r'<parameter\s+name\s*=\s*"?(?P<key>[^">]+)"?\s*>',
            "</parameter>",
            written=('<invoke name="{name}">', '<parameter name="{key}">'),
            otherwise=of_objects,
        ),
    ),
    "step3": ToolFamily(
        "Step3",
        _tagged(
            (_wide("tool_calls_begin"), _wide("tool_calls_end")),
            f"(?:{_wide('tool_sep')})?\\s*{_wide('tool_call_begin')}(?:function{_wide('tool_sep')})?"
            '<steptml:invoke name="(?P<name>[^"]+)">',
            f"</steptml:invoke>{_wide('tool_call_end')}",
            r'<steptml:parameter name="(?P<key>[^"]+)">',
            "</steptml:parameter>",
            written=(
                f"{_wide('tool_call_begin')}function{_wide('tool_sep')}"
                '<steptml:invoke name="{name}">',
                '<steptml:parameter name="{key}">',
            ),
        ),
        (("<steptml:invoke",),),
        (_wide("tool_call_begin"), _wide("tool_sep"), _wide("tool_call_end")),
    ),
    "minimax_m2": ToolFamily(
        "MiniMax M2",
        _tagged(
            ("<minimax:tool_call>", "</minimax:tool_call>"),
            rf'<invoke name="?(?P<name>[^">]+?)"?{_CLOSED}',
            "</invoke>",
            r'<parameter name="?(?P<key>[^">]+)"?>',
            "</parameter>",
            written=('<invoke name="{name}">', '<parameter name="{key}">'),
        ),
    ),
    "seed_oss": ToolFamily(
        "Seed-OSS",
        _tagged(
            ("<seed:tool_call>", "</seed:tool_call>"),
            r"<function=(?P<name>[^>]+)>",
            "</function>",
            r"<parameter=(?P<key>[^>]+)>",
            "</parameter>",
            written=("<function={name}>", "<parameter={key}>"),
        ),
    ),
    "qwen3_coder": ToolFamily(
        "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, MiMo",
        _tagged(
            ("<tool_call>", "</tool_call>"),
            r"<function=(?P<name>[^>]+)>",
            "</function>",
            r"<parameter=(?P<key>[^>]+)>",
            "</parameter>",
            written=("<function={name}>", "<parameter={key}>"),
            inline="<function=",
        ),
        (("<function=", "<parameter="),),
    ),
    "minicpm5": ToolFamily(
        "MiniCPM5",
        _tagged(
            None,
            rf'<function name="(?P<name>[^"]+)"{_CLOSED}',
            "</function>",
            r'<param name="(?P<key>[^"]+)">',
            "</param>",
            written=('<function name="{name}">', '<param name="{key}">'),
            inline="<function name=",
        ),
        (("<function name=", "<param name="),),
    ),
    "hunyuan3": ToolFamily(
        "Hunyuan 3",
        _hunyuan(":opensource", "<tool_sep:opensource>"),
        (("<tool_sep", ":opensource"),),
    ),
    "hunyuan3_preview": ToolFamily(
        "Hunyuan 3 preview", _hunyuan("", "<tool_sep>"), (("<tool_sep>",),)
    ),
    "hunyuan4": ToolFamily("Hunyuan 4", _hunyuan("", ""), (("<tool_calls>", "<arg_key>"),)),
    "glm": ToolFamily(
        "GLM-4.5 to 4.7, Laguna, Ling 3",
        _tagged(
            ("<tool_call>", "</tool_call>"),
            r"(?P<name>[^\s<]+)",
            "",
            r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>",
            "</arg_value>",
            written=("{name}", "<arg_key>{key}</arg_key>[[\n]]<arg_value>"),
            orphan="<arg_key>[^<]*</arg_key>",
        ),
        (("<arg_key>",),),
    ),
    "mistral": ToolFamily(
        "Mistral, Ministral, Devstral, Magistral",
        CallFormat(
            objects_or(after_names(_MISTRAL), ("[", "{")),
            (("[TOOL_CALLS]", ""),),
            pieces=pieces_of(OBJECTS, named_shape(_MISTRAL)),
            grammar=call_writer.of_objects((("[TOOL_CALLS]", ""),), named=_MISTRAL_NAMES),
        ),
        (("[TOOL_CALLS]",), ("[AVAILABLE_TOOLS]",)),
        ("[CALL_ID]", "[ARGS]"),
    ),
    "solar_open": ToolFamily(
        "Solar Open",
        _named(
            r"<\|tool_call:begin\|>(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]+)"
            r"<\|tool_call:args\|>",
            r"<\|tool_call:end\|>",
            written=(
                "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}"
                "<|tool_call:end|>",
            ),
            marks=(("<|tool_calls|>", "<|calls|>"),),
        ),
        (("<|tool_call:begin|>",),),
        ("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
    ),
    "gigachat3": ToolFamily(
        "GigaChat 3",
        _json(
            ("<|message_sep|>\n\nfunction call<|role_sep|>", ""),
            ("function call<|role_sep|>", ""),
            ("<|function_call|>", ""),
        ),
        (("<|function_call|>",), ("function call", "<|role_sep|>")),
        ("<|message_sep|>", "<|role_sep|>"),
    ),
    "functionary_v31": ToolFamily(
        "Functionary 3.1",
        _named(
            r"<function=(?P<name>[^>]+)>",
            "</function>",
            written=("<function={name}>{arguments}</function>",),
            inline=(("<function=", "</function>"),),
        ),
        (("<function=", "</function>"), ("<function=", "<{start_tag}={function_name}>")),
    ),
    "cohere": ToolFamily("Command R7B, Command A", _json(("<|START_ACTION|>", "<|END_ACTION|>"))),
    "command_r": ToolFamily(
        "Command R, R+", _json(("Action: ```json", "```")), (("Action: ```json",), ("'Action:'",))
    ),
    "internlm": ToolFamily(
        "InternLM 2.5, 3",
        _json(("<|action_start|><|plugin|>", "<|action_end|>")),
        (("<|action_start|>",),),
    ),
    "apertus": ToolFamily(
        "Apertus",
        replace(
            _json(("<|tools_prefix|>", "<|tools_suffix|>")),
            pieces=pieces_of(OBJECTS, NAMED_OBJECTS),
            grammar=None,
        ),
    ),
    "lfm2": ToolFamily(
        "LFM2",
        _python(("<|tool_call_start|>", "<|tool_call_end|>")),
        (("<|tool_call_start|>",), ("<|tool_list_start|>",)),
    ),
    "longcat": ToolFamily("LongCat", _json(("<longcat_tool_call>", "</longcat_tool_call>"))),
    "nemotron": ToolFamily("Nemotron Nano 2, Llama-Nemotron", _json(("<TOOLCALL>", "</TOOLCALL>"))),
    "functiongemma": ToolFamily(
        "FunctionGemma",
        _quoted("<escape>", ("<start_function_call>", "<end_function_call>")),
        inner=("<escape>",),
    ),
    "gemma4": ToolFamily(
        "Gemma 4",
        _quoted('<|"|>', ("<|tool_call>", "<tool_call|>")),
        (("<|tool_call>", "<tool_call|>"),),
        ('<|"|>',),
    ),
    "olmo3": ToolFamily("Olmo 3", _python(("<function_calls>", "</function_calls>"))),
    "phi4_mini": ToolFamily(
        "Phi-4-mini",
        _json(("<|tool_call|>", "<|/tool_call|>"), ("functools", "")),
        (("<|/tool_call|>",), ("<|/tool|>",), ("functools[",)),
    ),
    "granite": ToolFamily("Granite 3", _json(("<|tool_call|>", ""), ("<tool_call>", ""))),
    "granite_20b": ToolFamily("Granite 20B function calling", _json(("<function_call>", ""))),
    "hunyuan_a13b": ToolFamily(
        "Hunyuan A13B",
        replace(
            _json(("<tool_calls>", "</tool_calls>")),
            dropped=("<answer>", "\n</answer>", "</answer>"),
        ),
        (
            ("<tool_calls>", "<answer>"),
            ("<think>", "<answer>"),
            ("<tool_calls>", "<|extra_0|>"),
        ),
    ),
    "minimax_m1": ToolFamily("MiniMax M1, Jamba", _json(("<tool_calls>", "</tool_calls>"))),
    "llama4": ToolFamily(
        "Llama 4",
        _python(("<|python_start|>", "<|python_end|>"), bare=_OBJECTS),
        (("<|python_start|>",), ("<|header_start|>",)),
    ),
    "pythonic": ToolFamily(
        "Llama 3.2 with pythonic calls, ToolACE, Gemma 3",
        _python(
            ("```tool_code", "```"),
            ("```python", "```"),
            ("<|python_start|>", "<|python_end|>"),
            bare=("[",),
        ),
        (("[func_name1(",), ("```tool_code",)),
    ),
    "ernie45": ToolFamily(
        "ERNIE 4.5",
        replace(
            _json(("<tool_call>", "</tool_call>"), bare=_OBJECT),
            dropped=("<response>", "\n</response>", "</response>"),
        ),
        (("<tool_call>", "<response>"),),
    ),
    "hermes": ToolFamily(
        "Qwen 2.5, Qwen3, QwQ, Hermes, SmolLM3, Granite 4, EXAONE 4; any other",
        _json(("<tool_call>", "</tool_call>"), bare=_OBJECT),
    ),
    "llama3": ToolFamily(
        "Llama 3.1, 3.2, 3.3",
        _json(("<|python_tag|>", ""), bare=_OBJECT, inline=('{"name"',)),
        (("<|python_tag|>",), ("Environment: ipython",), ('"parameters": dictionary',)),
    ),
    "xlam": ToolFamily(
        "xLAM, Watt",
        # Its calls may also follow the end of thoughts.
        replace(_XLAM, marks=(*_XLAM.marks, ("</think>", ""))),
        (("make calls in a single JSON array",),),
    ),
    FORCED: ToolFamily("any that writes bare JSON", _json(bare=_OBJECTS)),
}


@dataclass(frozen=True, slots=True)
class ThoughtFamily:
    """How a family marks its thoughts. `signs` as those of a `ToolFamily`."""

    models: str
    format: ThoughtFormat
    signs: tuple[tuple[str, ...], ...] = ()
    #: Special tokens within the format's marks.
    inner: tuple[str, ...] = ()

    def is_of(self, template: str) -> bool:
        return _has(template, self.signs or ((self.format.begin,),))


def _tags(name: str) -> ThoughtFormat:
    return ThoughtFormat(f"<{name}>", f"</{name}>")


THOUGHT_FAMILIES: Final[Mapping[str, ThoughtFamily]] = {
    "seed_oss": ThoughtFamily("Seed-OSS", _tags("seed:think")),
    "mistral": ThoughtFamily("Magistral, Ministral 3", ThoughtFormat("[THINK]", "[/THINK]")),
    "cohere": ThoughtFamily(
        "Command A Reasoning", ThoughtFormat("<|START_THINKING|>", "<|END_THINKING|>")
    ),
    "granite": ThoughtFamily(
        "Granite 3.2",
        ThoughtFormat("Here is my thought process:", "Here is my response:"),
        (("Here is my thought process:",), ("Here is my thought process after",)),
    ),
    "gemma4": ThoughtFamily(
        "Gemma 4",
        ThoughtFormat("<|channel>", "<channel|>", "thought"),
        (("<|channel>thought", "<channel|>"),),
    ),
    "harmony": ThoughtFamily(
        "gpt-oss, before calls that must be made",
        ThoughtFormat("<|channel|>", "<|end|>", "analysis<|message|>"),
        (("<|channel|>", "<|message|>"),),
        ("<|message|>",),
    ),
    "hunyuan3": ThoughtFamily(
        "Hunyuan 3",
        _tags("think:opensource"),
        (("<think:opensource>",), ("<think{}>", ":opensource")),
    ),
    "minimax_m3": ThoughtFamily("MiniMax M3", _tags("mm:think")),
    "kimi_k3": ThoughtFamily(
        "Kimi K3",
        ThoughtFormat("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        (("<|open|>", "<|close|>", "<|sep|>"),),
        ("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "k2_horizon": ThoughtFamily(
        "K2 Horizon",
        replace(
            _tags("ifm|think"),
            others=tuple(
                (f"<ifm|{mode}>", f"</ifm|{mode}>") for mode in ("think_fast", "think_faster")
            ),
        ),
    ),
    "plamo3": ThoughtFamily(
        "PLaMo 3",
        ThoughtFormat("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
        inner=_PLAMO,
    ),
    "inkling": ThoughtFamily("Inkling", ThoughtFormat("<|content_thinking|>", "<|end_message|>")),
    "think": ThoughtFamily(
        "DeepSeek R1 and V3.1, Qwen3, QwQ, GLM-4.5, MiniMax M1 and M2, Hunyuan, SmolLM3, EXAONE 4,"
        " Nemotron, Olmo 3, ERNIE 4.5",
        _tags("think"),
        (("<think>",), ("</think>",)),
    ),
}


def tool_family_of(template: str, special: Collection[str] = ()) -> str:
    """The name of the family whose signs a chat template has; else of the one whose signs are among
    the special tokens; else of the default."""
    for text in (template, "\n".join(special)):
        for name, family in TOOL_FAMILIES.items():
            if family.is_of(text):
                return name
    return DEFAULT


def thought_family_of(template: str) -> str:
    """The name of the family whose thoughts a chat template has; "none" without any."""
    return next((n for n, f in THOUGHT_FAMILIES.items() if f.is_of(template)), "none")


def _has(template: str, signs: tuple[tuple[str, ...], ...]) -> bool:
    return any(all(sign in template for sign in together) for together in signs)
