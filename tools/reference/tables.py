"""What do the tables say that pages of docs/reference have from the code?

A page says where, and the rest of it is written by hand:

    <!-- table of options -->
    <!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

import wherry
from tools.reference.definitions import ROOT, defined
from tools.reference.python import cell, fields_table
from wherry.core.observability.families import LABELS
from wherry.core.observability.fronts import front_metrics
from wherry.core.observability.metrics import Metrics
from wherry.core.values import errors
from wherry.llm.formats.families import THOUGHT_FAMILIES, TOOL_FAMILIES
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.completions import CompletionRequest
from wherry.llm.openai.generation_request import Request
from wherry.llm.openai.task_requests import EmbeddingRequest
from wherry.server.calls.admission import Admission
from wherry.server.fronts.processes import FiguresOfFronts
from wherry.server.http_app import HttpApp
from wherry.server.openapi.document import DescribedServer, document
from wherry.server.openapi.model_schemas import without_raw
from wherry.server.options import OPTIONS
from wherry.server.v2.common import Common
from wherry.server.v2.shared_memory import SharedMemory

BLOCK: Final = re.compile(r"(<!-- table of (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """A page with its tables as the code has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def pages_with_tables() -> list[str]:
    """Names of the pages of docs/reference that have such tables."""
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    return [page.name for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


def _table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, re.sub(r"[^|]+", "---", head)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _settings() -> str:
    return "".join(fields_table([*defined("wherry", "ModelConfig").fields()])).lstrip()


def _options() -> str:
    def default(value: Any) -> str:
        switch = {True: "on", False: "off"}
        said = switch[value] if isinstance(value, bool) else value
        return "" if value in (None, ()) else f"`{said}`"

    def row(one: Any) -> tuple[str, str, str]:
        keyword = f" (`{one.keyword}=`)" if one.keyword not in ("", one.key) else ""
        return f"`{one.flag}`{keyword}", default(one.default), one.help

    return _table("| flag | default | meaning |", map(row, OPTIONS.values()))


def _errors() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, error in vars(errors).items():
            if isinstance(error, type) and issubclass(error, errors.WherryError):
                public = f"`wherry.{name}`" if name in wherry.__all__ else f"`{name}`"
                below = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
                codes = str(error.http_status), error.grpc_code, error.reason.lower()
                yield public, below, *codes, error.__doc__ or ""

    return _table("| error | below | HTTP | gRPC | outcome | means |", rows())


def _fields(request: type[msgspec.Struct], *, with_bases: bool = False) -> str:
    """The fields of a request, without those that are accepted whatever they are."""
    schema: dict[str, Any] = msgspec.json.schema_components([without_raw(request)])[1]
    types = schema[request.__name__]["properties"]
    found = defined(request.__module__, request.__name__)
    classes = found.ancestors() if with_bases else [found]
    rows = (
        (f"`{one.name}`", _type(types[one.name]), one.meaning)
        for owner in classes
        for one in owner.fields()
        if one.type != "msgspec.Raw"
    )
    return _table("| field | type | meaning |", rows)


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "anyOf" in schema:
        kinds = [_type(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return ", ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind = schema.get("type", "object")
    if kind == "array":
        most = f" (at most {schema['maxItems']})" if "maxItems" in schema else ""
        items = _type(schema["items"])
        return f"array of {f'({items})' if ',' in items else items}{most}"
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    return f"{least} to {most}" if kind == "integer" and most < 100 else kind


def _families(of: Mapping[str, Any], parser: str) -> str:
    rows = ((f"`{name}`", family.models) for name, family in of.items())
    return _table(f"| `{parser}` | models |", rows)


@wherry.model(name="any", response_cache=True)
def _cached(text: str) -> str:
    return text


METRIC: Final = "| metric | type | labels | meaning |"


def _metrics(prefix: str, head: str = METRIC) -> str:
    with wherry.Runtime(_cached, cache_bytes=10_000) as runtime:
        metrics = [*Metrics(runtime, Admission(), "1").collect()]
    return _metric_table((one for one in metrics if one.name.startswith(prefix)), head)


def _metric_table(metrics: Iterable[Any], head: str = METRIC) -> str:
    def row(one: Any) -> tuple[str, ...]:
        suffix = {"counter": "_total", "info": "_info"}.get(one.type, "")
        labels = dict.fromkeys(getattr(one, "_labelnames", ()))
        labels |= dict.fromkeys(label for sample in one.samples for label in sample.labels)
        of_all = {*LABELS, "le"} if one.type != "info" else ()
        shown = [f"`{name}`" for name in labels if name not in of_all]
        # Triton's are untyped for prometheus_client, and shown as counters.
        kind = one.type.replace("unknown", "counter")
        return f"`{one.name}{suffix}`", kind, ", ".join(shown), one.documentation

    columns = head.count("|") - 1
    return _table(head, (row(one)[:columns] for one in metrics))


def _routes() -> str:
    """The paths of the OpenAPI document of a server that has every route."""
    with wherry.Runtime() as runtime:
        app = HttpApp(runtime, common=Common(shared_memory=SharedMemory(allowed=True)))
        routes = {path: replace(route, needs=()) for path, route in app.described().items()}
        paths = document(DescribedServer(version="1", models=(), routes=routes))["paths"]
    version = "/versions/{version}"
    names = {"{model}": "M", "{region}": "N", "{response}": "ID"}

    def rows() -> Iterator[tuple[str, ...]]:
        alike: dict[tuple[str, str], list[str]] = {}
        for path in sorted(path for path in paths if version not in path):
            shown = path
            if path.replace("{model}", f"{{model}}{version}") in paths:
                shown = path.replace("{model}", "{model}[/versions/V]")
            for long, short in names.items():
                shown = shown.replace(long, short)
            for method, operation in paths[path].items():
                alike.setdefault((method.upper(), operation["summary"]), []).append(f"`{shown}`")
        for (method, summary), ways in alike.items():
            yield method, ", ".join(ways), summary

    return _table("| method | path | |", rows())


TABLES: Final[dict[str, Callable[[], str]]] = {
    "settings of a model": _settings,
    "options": _options,
    "errors": _errors,
    "routes": _routes,
    "metrics of wherry": partial(_metrics, "wherry"),
    "metrics of Triton": partial(_metrics, "nv_", "| metric | type | labels |"),
    "metrics of fronts": lambda: _metric_table(front_metrics(FiguresOfFronts())),
    "fields of chats and completions": partial(_fields, Request),
    "fields of chats": partial(_fields, ChatRequest),
    "fields of completions": partial(_fields, CompletionRequest),
    "families of calls": partial(_families, TOOL_FAMILIES, "tool_parser"),
    "families of thoughts": partial(_families, THOUGHT_FAMILIES, "reasoning_parser"),
    "fields of embeddings": partial(_fields, EmbeddingRequest, with_bases=True),
}
