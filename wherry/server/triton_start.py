"""Which lines of the log tell that the server serves, as Triton writes them? For
`--triton-strict`: scripts wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from wherry.runtime.control import ModelStatus

#: An event and its fields.
Line = tuple[str, dict[str, str]]


def started(
    index: Sequence[ModelStatus], grpc_address: str, urls: Mapping[str, str]
) -> Iterator[Line]:
    """The table of the models, then a line for each service; `urls` are by "http" and "metrics"."""
    yield "models", {"table": model_table(index)}
    if grpc_address:
        yield f"Started GRPCInferenceService at {grpc_address}", {}
    for name, service in (("http", "HTTPService"), ("metrics", "Metrics Service")):
        if name in urls:
            yield f"Started {service} at {urls[name].partition('://')[2]}", {}


def model_table(index: Sequence[ModelStatus]) -> str:
    """The models that were loaded, or could not be, each version with its status."""
    rows = [["Model", "Version", "Status"]]
    rows += [
        [one.name, one.version, f"{one.state}: {one.reason}" if one.reason else one.state]
        for one in index
        if one.state
    ]
    cells = [[cell.splitlines() or [""] for cell in row] for row in rows]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(3)]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    made = [border]
    for number, row in enumerate(cells):
        for line in range(max(map(len, row))):
            texts = [cell[line] if line < len(cell) else "" for cell in row]
            padded = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
            made.append("| " + " | ".join(padded) + " |")
        if number == 0:
            made.append(border)
    return "\n".join([*made, border])
