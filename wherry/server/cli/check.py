"""Would these models serve, with which settings, and what is wrong with them? `wherry check`.

All files of a model repository are looked at before a model is loaded, so that one run reports
everything.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext
from dataclasses import fields
from typing import Any

from wherry.core.api import (
    FIELDS,
    Audio,
    ConfigError,
    File,
    Loadable,
    LoadedModel,
    LoadFailed,
    ModelConfig,
    Runtime,
    SequenceStep,
    WherryError,
)
from wherry.llm.api import with_options
from wherry.server.cli.screen import configure_log
from wherry.server.cli.serve import (
    LOAD_FAILED,
    control_of,
    log_ignored,
    log_load_failure,
    runtime_of,
    split_targets,
)
from wherry.server.cli.settings import Settings, read_settings
from wherry.server.cli.show import as_json, print_line, print_table, shown, signature_in_words
from wherry.server.options import OPTIONS
from wherry.server.targets import TargetRaised, load_targets
from wherry.triton.api import Found, RepositoryFolders, members, not_here

#: The engines that run in a worker of the server's, in wherry's loop.
OURS = ("wherry", "transformers")
#: Of a process on a GPU, before it has any tensor; of the server and a worker on a CPU, with torch.
CONTEXT_BYTES = 500_000_000
LIBRARY_BYTES = 340_000_000
#: Tokens for which the size of the KV cache is printed.
TOKENS = 1000


def print_checkpoint(target: str) -> None:
    """Print what a target `llm:...` needs, if its files are here. ConfigError if a file is missing
    or damaged, or if no engine can serve it."""
    kind, _, source = target.partition(":")
    if kind != "llm":
        return
    from wherry.llm.api import AUTO, choose, facts_of, here, is_local, needs_of

    source, engine_settings = with_options(source)
    if not is_local(source):
        return
    machine = here()
    choice = choose(facts_of(source), machine, engine_settings.get("engine", AUTO))
    needs = needs_of(source)
    dtype = engine_settings.get("dtype", AUTO)
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
        rows.append(_memory(needs.weight_bytes(dtype), engine_settings))
    elif choice.engine in OURS:
        rows.append(_gpu_memory(needs.weight_bytes(dtype), engine_settings))
    if needs.has_chat_template:
        parsers = f"calls: {needs.tool_parser}, reasoning: {needs.reasoning_parser}"
        rows.append(("chat", "yes", parsers))
    else:
        rows.append(("chat", "no", "no chat template: it completes prompts"))
    print_line(f"{target}")
    print_table(rows, indent="  ")
    print_line("")


def _memory(weights: int, engine_settings: Mapping[str, Any]) -> tuple[str, str, str]:
    """What wherry's own engine takes at most on a CPU."""
    from wherry.llm.api import cpu_cache_bytes, free_bytes

    free, chosen = free_bytes(), engine_settings.get("cache_gb")
    cache_gb = chosen if isinstance(chosen, int | float) else None
    cache = cpu_cache_bytes(cache_gb, max(0, free - weights))
    parts = f"of {_size(free)} free: weights, libraries, KV cache up to {_size(cache)}"
    return "memory", f"up to {_size(weights + LIBRARY_BYTES + cache)}", parts


def _gpu_memory(weights: int, engine_settings: Mapping[str, Any]) -> tuple[str, str, str]:
    """What wherry's own engine takes on a GPU."""
    fixed = _size(weights + CONTEXT_BYTES)
    if (cache := engine_settings.get("cache_gb")) is not None:
        return (
            "memory",
            _size(weights + CONTEXT_BYTES + round(cache * 1e9)),
            "and what a step takes",
        )
    if (share := engine_settings.get("gpu_memory")) is not None:
        return "memory", f"{share:.0%} of the GPU", f"{fixed} of it for weights and context"
    return "memory", fixed, "and 85 % of what is free then: gpu_memory=0.4 takes less"


def _weights(parameters: int, dtype: str) -> str:
    counted = f"{parameters / 1e6:.0f} million numbers as " if parameters else ""
    return counted + dtype


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def check(args: argparse.Namespace) -> int:
    """Load and warm up, run every example, print the merged settings with their origins."""
    flags = vars(args)
    settings = read_settings(flags, os.environ)
    screen = configure_log(settings.options)
    log_ignored(flags)
    try:
        targets, settings = split_targets(flags["target"], settings)
        for target in targets:
            print_checkpoint(target)
        models = load_targets(targets)
        runtime = runtime_of(settings, models)
        with ExitStack() as stack:
            with screen.during(runtime.not_ready) if screen else nullcontext():
                stack.enter_context(runtime)
            healthy = [
                _check_model(runtime, loaded, settings, show_all=flags["all"])
                for loaded in runtime.models()
            ]
            if settings.options.repositories.model_repositories:
                healthy.append(_check_repositories(runtime, settings))
    except (TargetRaised, LoadFailed) as error:
        return log_load_failure(error)
    return 0 if all(healthy) else LOAD_FAILED


def _check_model(
    runtime: Runtime, loaded: LoadedModel, settings: Settings, *, show_all: bool
) -> bool:
    count = len(loaded.runner.instances)
    kind = "pipeline" if loaded.is_pipeline else f"{count} instance{'s' if count > 1 else ''}"
    print_line(f"{loaded.name} (version {loaded.version}, {kind})")
    print_line(f"  takes    {signature_in_words(loaded.signature)}")
    outcomes = [_run_example(runtime, loaded, row) for row in loaded.config.examples]
    if not loaded.config.examples:
        print_line("  no examples; examples=[{...}] of the model are run here")
    if not (loaded.is_pipeline or loaded.signature.row_wise) and loaded.config.max_batch_size == 1:
        print_line("  note     it takes batches, but max_batch_size is 1, so each row runs alone")
    if memory := _memory_of_workers(loaded.runner.instances):
        print_line(f"  memory   {memory}")
    print_line("")
    rows = list(_rows_of_config(loaded, settings))
    listed = rows if show_all else [row for row in rows if row[2] != "default"]
    print_table(listed, indent="  ")
    if not show_all:
        which = "the other" if listed else "all"
        print_line(f"  {which} settings have their defaults; --all lists them")
    print_line("")
    return all(outcomes)


def _memory_of_workers(instances: Sequence[Loadable]) -> str:
    """What these take now; "" if they are in this process."""
    resident = [(one, size) for one in instances if (size := one.rss_bytes)]
    workers = Counter(str(one.device) for one, _ in resident if one.device.kind == "cuda")
    found = [f"{_size(size)} in {one.name}" for one, size in resident]
    found += [
        f"{device}: {_size(count * CONTEXT_BYTES)} for contexts, and the weights"
        for device, count in workers.items()
    ]
    return ", ".join(found)


def _run_example(runtime: Runtime, loaded: LoadedModel, row: Mapping[str, Any]) -> bool:
    started = time.perf_counter()
    # Of a model that takes sequences, each example is one of its own.
    step = None if loaded.config.sequence is None else SequenceStep(1, start=True, end=True)
    try:
        if loaded.signature.streams:
            result: Any = list(runtime.stream(loaded.name, sequence_step=step, **row))
        else:
            result = runtime.infer(loaded.name, sequence_step=step, **row)
    except WherryError as error:
        print_line(f"  example  {as_json(_brief(row))}\n           FAILED: {error}")
        return False
    ms = (time.perf_counter() - started) * 1000
    print_line(
        f"  example  {as_json(_brief(row))}\n           -> {as_json(_brief(result))}  ({ms:.1f} ms)"
    )
    return True


def _rows_of_config(loaded: LoadedModel, settings: Settings) -> Iterable[tuple[str, str, str]]:
    _, origins = settings.of_model(loaded.name)
    flags = {option.flag for option in OPTIONS.values()}
    for field in fields(ModelConfig):
        if field.name in ("name", "version", "examples"):
            continue
        value = getattr(loaded.config, field.name)
        origin = origins.get(field.name) or origins.get(
            "device" if field.name == "instances" else field.name
        )
        if origin is None:
            origin = "default" if value == FIELDS[field.name].default else "model"
        elif origin in flags:
            origin = f"flag {origin}"
        if field.name == "instances":
            value = ", ".join(f"{group.count} on {group.device}" for group in value)
        elif field.name == "warmup":
            value = f"{len(value)} rows"
        yield field.name, shown(value), origin


def _brief(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _brief(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_brief(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    if isinstance(value, File):
        return f"<{value.name}: {len(value.data)} bytes>"
    if isinstance(value, Audio):
        return repr(value)
    if hasattr(value, "mode") and hasattr(value, "size"):
        return f"<{value.mode} image, {value.size[0]} x {value.size[1]}>"
    return value


def _check_repositories(runtime: Runtime, settings: Settings) -> bool:
    """Load every model that can be; print the problems of each. True if there are none."""
    control = control_of(settings, runtime)
    try:
        failures = control.try_all()
        engine_settings = settings.options.repositories
        models = RepositoryFolders(
            control.repositories, engine_settings.model_config_name
        ).look_at_all()
        backends = engine_settings.backend_directory
        there = {model.name for model in models}
        problems = {model.name: _problems(model, failures, there, backends) for model in models}
        for model in models:
            _print_found(model, problems[model.name])
    except OSError as error:
        raise ConfigError(f"model repository {error.filename}: {error.strerror}") from None
    finally:
        control.close()
    bad = [name for name, found in problems.items() if found]
    count = f"{len(models)} model" + ("" if len(models) == 1 else "s")
    print_line(
        f"{count}: " + (f"{len(bad)} with problems: {', '.join(bad)}" if bad else "all good")
    )
    return not bad


def _problems(
    model: Found, failures: Mapping[str, str], there: Set[str], backends: str | None
) -> list[str]:
    """What is wrong with a model, of all that are `there`. An ensemble names the members that have
    problems, which report their own."""
    if model.problems:
        remedy = not_here(model.folder, model.config, model.versions, backends)
        return [*model.problems, *([f"{model.name}: {remedy}"] if remedy else [])]
    if model.name not in failures:
        return []
    failed = [member for member in members(model.config) if member in failures]
    missing = [member for member in members(model.config) if member not in there]
    problems = [f"{model.name}: its members have problems: {', '.join(failed)}"] if failed else []
    if missing:
        problems.append(f"{model.name}: its members are not there: {', '.join(missing)}")
    return problems or [failures[model.name]]


def _print_found(model: Found, problems: list[str]) -> None:
    versions = ", ".join(map(str, model.versions)) or "none"
    print_line(f"{model.name} (versions: {versions}): " + ("PROBLEMS" if problems else "good"))
    for problem in problems:
        print_line(f"  {problem}")
    for notice in model.notices:
        print_line(f"  note: {notice}")
