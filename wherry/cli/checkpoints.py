"""What does a checkpoint need? Said before it is loaded, from its headers and configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wherry.cli.show import print_line, print_table
from wherry.runtime.engines import with_options

if TYPE_CHECKING:  # imported where it is used: it takes time
    from wherry.llm.needs import Needs

#: The engines that run in a worker of the server's, in wherry's loop.
OURS = ("wherry", "transformers")
#: Of a process on a GPU, before it has any tensor.
CONTEXT_BYTES = 500_000_000
#: Tokens for which the KV cache is told.
TOKENS = 1000


def print_checkpoint(target: str) -> None:
    """Print what a target `llm:...` needs, if its files are here. ConfigError if a file is missing
    or damaged, or if no engine can serve it."""
    kind, _, source = target.partition(":")
    if kind != "llm":
        return
    from wherry.llm.choice import AUTO, choose
    from wherry.llm.facts import facts_of, here, is_local
    from wherry.llm.needs import needs_of

    source, given = with_options(source)
    if not is_local(source):
        return
    machine = here()
    choice = choose(facts_of(source), machine, given.get("engine", AUTO))
    needs = needs_of(source)
    dtype = given.get("dtype", AUTO)
    if dtype == AUTO:
        ours = choice.engine in OURS and not machine.gpu
        dtype = "float32" if ours else needs.stored_as
    rows = [
        ("engine", choice.engine, choice.reason),
        ("weights", _size(needs.weight_bytes(dtype)), _weights(needs.parameters, dtype)),
        ("stored", _size(needs.stored_bytes), needs.stored_as),
        ("context", f"{needs.context_tokens or 'unknown'} tokens", "at most"),
        ("KV cache", _size(needs.cache_bytes(TOKENS, dtype)), f"for {TOKENS} tokens"),
    ]
    if choice.engine in OURS and not machine.gpu:
        rows.append(_memory(needs, choice.engine, dtype, given))
    elif choice.engine in OURS:
        rows.append(_gpu_memory(needs.weight_bytes(dtype), given))
    if needs.has_chat_template:
        parsers = f"calls: {needs.tool_parser}, thoughts: {needs.reasoning_parser}"
        rows.append(("chat", "yes", parsers))
    else:
        rows.append(("chat", "no", "there is no chat template: it completes prompts"))
    print_line(f"{target}")
    print_table(rows, indent="  ")
    print_line("")


def _memory(
    needs: Needs, engine: str, dtype: str, given: Mapping[str, Any]
) -> tuple[str, str, str]:
    """What wherry's own engine takes on a CPU."""
    from wherry.llm.memory import free_bytes, parts_on_cpu, total_bytes

    free = free_bytes()
    parts = parts_on_cpu(needs, engine=engine, dtype=dtype, options=given, free=free)
    least, most = map(_size, total_bytes(parts))
    listed = ", ".join(
        f"{part.name} {'' if part.certain else 'up to '}{_size(part.nbytes)}" for part in parts
    )
    total = most if least == most else f"{least} to {most}"
    return "memory", total, f"of {_size(free)} free: {listed}"


def _gpu_memory(weights: int, given: Mapping[str, Any]) -> tuple[str, str, str]:
    """What wherry's own engine takes on a GPU."""
    fixed = _size(weights + CONTEXT_BYTES)
    if (cache := given.get("cache_gb")) is not None:
        return (
            "memory",
            _size(weights + CONTEXT_BYTES + round(cache * 1e9)),
            "and what a step takes",
        )
    if (share := given.get("gpu_memory")) is not None:
        return "memory", f"{share:.0%} of the GPU", f"{fixed} of it for weights and context"
    return "memory", fixed, "and 85 % of what is free then: gpu_memory=0.4 takes less"


def _weights(parameters: int, dtype: str) -> str:
    counted = f"{parameters / 1e6:.0f} million numbers as " if parameters else ""
    return counted + dtype


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
