"""How many of transformers' architectures give the same tokens here as in transformers?

    python -m benchmarks.llm_architectures [--only llama,mamba] [--timeout 60] [--jobs 2]
        [--json FILE]

Each causal architecture of the installed transformers is made tiny (tiny_config.py), with random
weights, saved, and loaded as `wherry serve llm:FOLDER` does: by wherry's engine, transformers'
modules with our attention, or with a cache for each sequence. Two prompts run at once, greedy, and
the tokens are compared with those of transformers' generate(), one by one. A line for each: equal
(by which way), different, refused (why), or failed. One that transformers itself cannot make of its
configuration, or cannot generate with, is to be refused: its configuration is loaded, with weights
of nothing. It ends with 1 if any is different or has failed. Each runs in a process of its own, so
that none takes the rest along.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import facts
from benchmarks.tiny_config import VOCABULARY, candidates

NEW_TOKENS: Final = 12
PROMPTS: Final = (tuple(range(5, 25)), tuple(range(40, 47)))
#: Larger ones were not made tiny.
MOST_WEIGHTS: Final = 300_000_000
#: Imported once, before the processes are forked: seconds for each one.
PRELOADED: Final = ("torch", "transformers", "transformers.generation", "wherry.llm.engine.loading")


def tried(kind: str) -> tuple[str, str]:
    """One architecture, by its model_type: what came of it, and by which engine or why not."""
    import torch
    import transformers
    from transformers import CONFIG_MAPPING

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    why = "its class has no default"
    config: Any = None
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / kind
        try:
            made_of = list(candidates(CONFIG_MAPPING[kind]))
            for config, cached in [*((c, True) for c in made_of), *((c, False) for c in made_of)]:
                try:
                    net = _net(config)
                    expected = [_generated(net, prompt, cached) for prompt in PROMPTS]
                except Exception as error:  # noqa: BLE001 - of any type, by what it needs
                    why = _brief(error)
                else:
                    return _compared(net, folder, expected)
        except Exception as error:  # noqa: BLE001 - of any type: the class refuses its default
            why = _brief(error)
        return _refused(kind, config, folder, why)


def _net(config: Any) -> Any:
    """A network with random weights. ValueError if it is large."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    with torch.device("meta"):
        meta = AutoModelForCausalLM.from_config(config)
    weights = sum(one.numel() for one in meta.parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights} weights")
    net: Any = AutoModelForCausalLM.from_config(config).eval()
    for one in net.parameters():  # some begin as zeros, with which anything is equal
        if not one.any():
            torch.nn.init.normal_(one, std=0.02)
    return net


def _refused(kind: str, config: Any, folder: Path, why: str) -> tuple[str, str]:
    """What is said of a checkpoint that transformers does not make: `why`."""
    import torch
    from safetensors.torch import save_file

    from wherry.core.values.errors import ConfigError
    from wherry.llm.engine.loading import load_engine

    _tokenizer(None).save_pretrained(folder)
    if config is not None:
        (folder / "config.json").write_text(config.to_json_string(use_diff=False))
    else:
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    save_file({"w": torch.zeros(1)}, folder / "model.safetensors")
    try:
        load_engine(str(folder), "model", "cpu", cache_gb=0.05, threads=1)
    except ConfigError as error:
        return "refused", f"{_brief(error)} (transformers: {why})"
    except Exception as error:  # noqa: BLE001 - of any type: our own fault, or a library's
        return "failed", _brief(error)
    return "not made", why


def _generated(net: Any, prompt: tuple[int, ...], cached: bool) -> list[int]:
    import torch

    ids = torch.tensor([prompt])
    wanted: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None,
        "pad_token_id": 0, "max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS,
    }  # fmt: skip
    net.generation_config.forced_eos_token_id = None  # bart's, for its last token
    if not cached:  # some have no cache that generate() can make
        wanted["use_cache"] = False
    answer = net.generate(ids, **wanted)
    return [int(token) for token in answer[0, len(prompt) :]]


def _compared(net: Any, folder: Path, expected: list[list[int]]) -> tuple[str, str]:
    from wherry.core.values.errors import ConfigError
    from wherry.llm.engine.loading import load_engine
    from wherry.llm.engine.sampling import Sampling

    wanted = Sampling(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    try:
        net.save_pretrained(folder)
        _tokenizer(net.config).save_pretrained(folder)
        engine, _ = load_engine(str(folder), "model", "cpu", cache_gb=0.05, threads=1)
    except ConfigError as error:
        return "refused", _brief(error)
    except Exception as error:  # noqa: BLE001 - of any type: our own fault, or a library's
        return "failed", _brief(error)
    sequences = [engine.add(list(prompt), wanted)[0] for prompt in PROMPTS]
    while engine.busy:
        engine.step()
    found = [one.tokens[one.prompt_tokens :] for one in sequences]
    run: Any = engine._run  # what computes the steps, for its name
    by = type(getattr(run, "__self__", run)).__name__
    by = {"StateRunner": "a cache for each sequence"}.get(by, "paged attention")
    return ("equal", by) if found == expected else ("different", f"{by}: {found} not {expected}")


def _tokenizer(config: Any) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    text = None if config is None else config.get_text_config()
    size = min(VOCABULARY, getattr(text, "vocab_size", VOCABULARY))
    words = {f"w{number}": number for number in range(size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), eos_token="w2"
    )


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def in_a_process(kind: str, timeout: float) -> tuple[str, str]:
    """What `tried` says, from a process that may end as it likes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_told, args=(kind, sending))
    process.start()
    sending.close()
    try:
        if not receiving.poll(timeout):
            return "failed", f"no answer in {timeout:g} s"
        said: tuple[str, str] = receiving.recv()
        return said
    except EOFError:
        process.join()
        return "failed", f"its process ended with {process.exitcode}"
    finally:
        receiving.close()
        process.kill()
        process.join()


def _told(kind: str, sending: Any) -> None:
    sending.send(tried(kind))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="these model_types")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for each")
    parser.add_argument("--jobs", type=int, default=2, help="so many at once")
    parser.add_argument("--json", type=Path, help="write what came of each here")
    options = parser.parse_args()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    kinds = list(filter(None, options.only.split(","))) or sorted(KNOWN)
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for kind, (what, why) in zip(
            kinds, pool.map(lambda one: in_a_process(one, options.timeout), kinds), strict=True
        ):
            rows.append({"architecture": kind, "what": what, "why": why})
            print(f"{kind:24s} {what:10s} {why}", flush=True)
    counts = Counter(row["what"] for row in rows)
    print(f"{len(rows)} architectures: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    if options.json is not None:
        options.json.write_text(json.dumps({**facts(), "counts": counts, "rows": rows}, indent=1))
    return 1 if counts["different"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
