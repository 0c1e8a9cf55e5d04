"""Which calls stand in a text as Python would call them, by keywords with literals?"""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any, Final

from wherry.llm.formats.calls import Functions, ToolCall, call_of

_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_FENCE: Final = re.compile(r"```(?:python|py|tool_code)?\s*(.*?)\s*```", re.DOTALL)
#: Where a text in quotes begins, and a quote that an argument, an element or the call can end with.
_OPEN: Final = re.compile(r"""(?<=[=(,\[{: ])['"]""")
_CLOSE: Final = {
    quote: re.compile(
        rf"""(?<!\\){quote}(?=\s*(?:,\s*(?:[A-Za-z_]\w*\s*=|['"\[{{\d-])"""
        r"""|\)\s*(?:$|[,\];\n])|[\]}:]))"""
    )
    for quote in "'\""
}
_LEADING_ZEROS: Final = re.compile(r"(?<=[=(,\[: ])0+(?=[1-9]\d*\s*[,)\]}])")
#: A text in quotes, and brackets.
_BRACKETS: Final = re.compile(
    r"""'(?:\\.|[^'\\])*+(?:'|\Z|\\\Z)|"(?:\\.|[^"\\])*+(?:"|\Z|\\\Z)|[\[({]|(?P<close>[\])}])""",
    re.DOTALL,
)
#: How many characters are parsed: the tree of a text has a thousand times its size.
MOST_CHARACTERS: Final = 1 << 17


def of_python(text: str, functions: Functions) -> list[ToolCall]:
    """Calls in a list, or one on each line, in a fence of Markdown or not, printed or not."""
    text = text.strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"more than {MOST_CHARACTERS} characters")
    try:
        tree = _tree(text)
    except ValueError:
        tree = _tree(_mended(text))
    try:
        return [
            _call(call, functions)
            for line in tree.body
            for call in _calls(line.value if isinstance(line, ast.Expr) else line)
        ]
    except TypeError as error:
        raise ValueError(str(error)) from None


def end_of_python(text: str) -> int:
    """Where the list ends that a text begins with; 0 if it does not end."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in "[({":
            depth += 1
        elif found["close"]:
            depth -= 1
            if depth <= 0:
                return found.end()
    return 0


def _tree(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return ast.parse(text)
    except (SyntaxError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _mended(text: str) -> str:
    """The text with the bare line breaks and quotes within its strings escaped, and without the
    leading zeros of integers."""
    parts: list[str] = []
    at = 0
    while begun := _OPEN.search(text, at):
        quote = begun[0]
        close = _CLOSE[quote].search(text, begun.end())
        if close is None:
            break
        inner = re.sub(rf"(?<!\\){quote}", rf"\\{quote}", text[begun.end() : close.start()])
        inner = inner.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\x00")
        parts += _LEADING_ZEROS.sub("", text[at : begun.start()]), quote, inner, quote
        at = close.end()
    return "".join(parts) + _LEADING_ZEROS.sub("", text[at:])


def _calls(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
        return node.args
    return [node] if isinstance(node, ast.expr) else [ast.Name("statement")]


def _call(node: ast.expr, functions: Functions) -> ToolCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("no call")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("arguments without names")
    arguments = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return call_of(ast.unparse(node.func), written, functions)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("no literal")
        keys = [_value(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)
