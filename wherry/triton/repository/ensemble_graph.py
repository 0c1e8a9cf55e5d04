"""Do the steps of an ensemble fit together, and with the models they name?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from wherry.triton.repository.normalise import is_decoupled, is_ensemble
from wherry.triton.repository.schema import nearest
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonOutput

#: The configuration of a member, by name; None if there is no such model.
Find = Callable[[str], TritonConfig | None]


def members(config: TritonConfig) -> list[str]:
    steps = config.ensemble_scheduling.step if config.ensemble_scheduling else []
    return list(dict.fromkeys(step.model_name for step in steps))


def graph_problems(config: TritonConfig) -> list[str]:
    """Problems of the steps alone: a tensor that no step or two steps produce, and circles."""
    if config.ensemble_scheduling is None or not config.ensemble_scheduling.step:
        return ["platform 'ensemble' needs ensemble_scheduling with at least one step"]
    problems: list[str] = []
    if config.instance_group:
        problems.append("instance_group has no meaning in an ensemble: it runs in its members")
    if config.dynamic_batching or config.sequence_batching:
        problems.append(
            "an ensemble has ensemble_scheduling only; batching is the business of its members"
        )
    givers = {tensor.name: "an input of the ensemble" for tensor in config.input}
    for number, step in enumerate(config.ensemble_scheduling.step):
        where = f"step[{number}] ({step.model_name})"
        if not step.model_name:
            problems.append(f"step[{number}]: model_name is missing")
        for side, mapped in (("input_map", step.input_map), ("output_map", step.output_map)):
            problems += [] if mapped else [f"{where}: {side} is missing"]
        for tensor in step.output_map.values():
            if tensor in givers:
                problems.append(f"{where}: tensor '{tensor}' is {givers[tensor]} already")
            givers.setdefault(tensor, f"an output of {where}")
    needed = [
        (f"step[{number}] ({step.model_name})", tensor)
        for number, step in enumerate(config.ensemble_scheduling.step)
        for tensor in step.input_map.values()
    ]
    needed += [(f"output '{output.name}'", output.name) for output in config.output]
    for where, tensor in needed:
        if tensor not in givers:
            problems.append(f"{where}: nothing gives the tensor '{tensor}'{_hint(tensor, givers)}")
    return problems or _circles(config)


@dataclass(frozen=True, slots=True)
class _KnownTensor:
    """A tensor as one model declares it; `shape` has the batch dimension, if the model has one."""

    data_type: str
    dims: Sequence[int]
    shape: Sequence[int]

    @classmethod
    def of(
        cls, config: TritonConfig, tensor: TritonInput | TritonOutput, *, reshaped: bool = False
    ) -> _KnownTensor:
        reshape = tensor.reshape if reshaped else None
        dims = tensor.dims if reshape is None else reshape.shape
        return cls(tensor.data_type, dims, [-1, *dims] if config.max_batch_size else dims)

    def difference(self, other: _KnownTensor) -> str:
        """Why a tensor of the other model cannot be one of this. Shapes with -1 are compared when a
        request runs, and a batch may be the rows of a model without batches (Triton's
        ValidateTensorConsistency)."""
        if self.data_type != other.data_type:
            return f"{other.data_type} elsewhere, {self.data_type} here"
        if _agree(self.dims, other.dims) or _agree(self.shape, other.shape):
            return ""
        return f"of shape {[*other.shape]} elsewhere, {[*self.shape]} here"


def _agree(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def member_problems(config: TritonConfig, find: Find) -> list[str]:
    """Problems between an ensemble and its members: missing tensors, other types or shapes."""
    assert config.ensemble_scheduling is not None
    problems: list[str] = []
    known = partial(_KnownTensor.of, config, reshaped=True)
    inputs = {tensor.name: known(tensor) for tensor in config.input}
    outputs = {tensor.name: known(tensor) for tensor in config.output}

    def check(where: str, name: str, tensor_known: _KnownTensor) -> None:
        for other in (inputs.setdefault(name, tensor_known), outputs.get(name, tensor_known)):
            if difference := tensor_known.difference(other):
                problems.append(f"{where}: tensor '{name}' is {difference}")

    for number, step in enumerate(config.ensemble_scheduling.step):
        where = f"step[{number}] ({step.model_name})"
        member = find(step.model_name)
        if member is None:
            problems.append(f"{where}: no such model")
            continue
        if 0 < member.max_batch_size < config.max_batch_size:
            problems.append(
                f"{where}: its max_batch_size is {member.max_batch_size}, less than the ensemble's"
                f" {config.max_batch_size}"
            )
        problems += _unknown(where, "input", step.input_map, member.input)
        problems += _unknown(where, "output", step.output_map, member.output)
        for tensor in member.input:
            if tensor.name in step.input_map:
                check(where, step.input_map[tensor.name], _KnownTensor.of(member, tensor))
            elif not tensor.optional:
                problems.append(f"{where}: its input '{tensor.name}' is not in input_map")
        for result in member.output:
            if result.name in step.output_map:
                check(where, step.output_map[result.name], _KnownTensor.of(member, result))
    return list(dict.fromkeys(problems))


def decoupled(config: TritonConfig, find: Find) -> bool:
    """Whether a request may have many responses: one of the members, or of theirs, is decoupled."""
    waiting = members(config)
    seen = set(waiting)  # each once: ensembles may share members, and call each other in a circle
    while waiting:
        member = find(waiting.pop())
        if member is None:
            continue
        if is_decoupled(member):
            return True
        if is_ensemble(member):
            new = set(members(member)) - seen
            seen |= new
            waiting += new
    return False


def _unknown(
    where: str, side: str, mapped: Iterable[str], tensors: Iterable[TritonInput | TritonOutput]
) -> list[str]:
    names = {tensor.name: None for tensor in tensors}
    if not names:  # nothing is known of this member yet
        return []
    return [
        f"{where}: the model has no {side} '{name}'{_hint(name, names)}"
        for name in mapped
        if name not in names
    ]


def _circles(config: TritonConfig) -> list[str]:
    """The steps that wait for each other, found by running the graph without tensors."""
    assert config.ensemble_scheduling is not None
    steps = config.ensemble_scheduling.step
    needs = [set(step.input_map.values()) for step in steps]
    users: dict[str, list[int]] = {}
    for number, tensors in enumerate(needs):
        for tensor in tensors:
            users.setdefault(tensor, []).append(number)
    ready = [number for number, tensors in enumerate(needs) if not tensors]
    known = [tensor.name for tensor in config.input]
    waiting = set(range(len(steps))) - set(ready)
    while known or ready:
        for number in ready:
            known += steps[number].output_map.values()
        ready = []
        for tensor in known:
            for number in users.pop(tensor, ()):
                needs[number].discard(tensor)
                if not needs[number]:
                    waiting.discard(number)
                    ready.append(number)
        known = []
    if not waiting:
        return []
    names = ", ".join(steps[number].model_name for number in sorted(waiting))
    return [f"the steps {names} wait for each other's tensors"]


def _hint(name: str, known: Collection[str]) -> str:
    close = nearest(name, known, cutoff=0.5)
    return f"; did you mean '{close}'?" if close else ""
