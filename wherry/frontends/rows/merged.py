"""How do the statistics and metrics of several owners become those of one pool? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from wherry.remote.members import ReplicaStatus

#: Fields by which two objects of a list are the same thing, the first that both have.
_KEYS: Final = (("name", "version"), ("batch_size",), ("type", "id"))
#: Numbers of which the greatest counts.
_LATEST: Final = frozenset(("last_inference", "batch_size"))


def merged_statistics(answers: Sequence[bytes]) -> bytes:
    """The statistics of all owners, each as JSON, summed field by field."""
    first, *others = [msgspec.json.decode(answer) for answer in answers]
    for other in others:
        first = _sum("", first, other)
    return msgspec.json.encode(first)


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys((*one, *other))
        return {n: _sum(n, one[n], other[n]) if n in one and n in other
                else one.get(n, other.get(n)) for n in names}  # fmt: skip
    if isinstance(one, list) and isinstance(other, list):
        return _sum_lists(one, other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return max(one, other) if name in _LATEST else one + other
    return one


def _sum_lists(one: list[Any], other: list[Any]) -> list[Any]:
    """Objects that are the same thing are summed, others follow."""
    together = {_key(value, n): value for n, value in enumerate(one)}
    for n, value in enumerate(other):
        key = _key(value, n)
        together[key] = _sum("", together[key], value) if key in together else value
    return list(together.values())


def _key(value: Any, place: int) -> Any:
    if isinstance(value, dict):
        for names in _KEYS:
            if all(name in value for name in names):
                return tuple(str(value[name]) for name in names)
    return place


def merged_metrics(texts: Mapping[str, str], *, openmetrics: bool) -> str:
    """The metrics of all owners, by what they are called, each sample with the label `replica`.
    A family's lines stay together."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for replica, text in texts.items():
        about, samples = families.setdefault("", ([], []))
        for line in text.splitlines():
            if line.startswith("# EOF") or not line:
                continue
            if line.startswith("#"):
                _, word, name = (*line.split(" ", 3), "", "")[:3]
                about, samples = families.setdefault(name, ([], []))
                if not any(known.startswith(f"# {word} ") for known in about):
                    about.append(line)
            else:
                samples.append(_labelled(line, replica))
    lines = [line for about, samples in families.values() for line in (*about, *samples)]
    return "\n".join((*lines, *(("# EOF",) if openmetrics else ()), ""))


def _labelled(sample: str, replica: str) -> str:
    label = f'replica="{_escaped(replica)}"'
    name, space, value = sample.partition(" ")
    at = name.find("{")
    if at < 0:
        return f"{name}{{{label}}}{space}{value}"
    rest = sample[at + 1 :]
    return f"{sample[: at + 1]}{label}{'' if rest.startswith('}') else ','}{rest}"


def pool_metrics(
    replicas: Iterable[ReplicaStatus], waits: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """The pool as a front sees it: its replicas, and for each model those of `Router.explain`."""
    replicas = list(replicas)
    up = {one.address: int(one.state in ("connected", "ready")) for one in replicas}
    of_models = [
        ({"replica": one["replica"], "model": model}, one)
        for model, owners in waits.items()
        for one in owners
    ]
    lines = [
        *_gauge(
            "wherry_replicas", "Owners that this front has links to.", [({}, sum(up.values()))]
        ),
        *_gauge(
            "wherry_replica_up",
            "Whether this front has a link to the owner.",
            [({"replica": one}, is_up) for one, is_up in up.items()],
        ),
        *_gauge(
            "wherry_replica_info", "What the owner is.", [(_about(one), 1) for one in replicas]
        ),
        *_gauge(
            "wherry_replica_wait_seconds",
            "When a row would be answered there, as this front predicts it.",
            [(labels, one["wait_seconds"]) for labels, one in of_models],
        ),
        *_gauge(
            "wherry_replica_rows",
            "Rows that the owner has, as far as this front knows.",
            [(labels, one["rows"]) for labels, one in of_models],
        ),
    ]
    return "\n".join((*lines, ""))


def _about(one: ReplicaStatus) -> dict[str, str]:
    return {"replica": one.address, "state": one.state, "name": one.name,
            "version": one.version, "device": one.device}  # fmt: skip


def _gauge(
    name: str, help: str, samples: Sequence[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {value}"


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
