"""Where are a model's weights, its configuration and its tokenizer, and in what form?

A folder as `save_pretrained` writes it, a model id of the Hugging Face hub (downloaded into its
own cache), or a GGUF file, which transformers converts once: the result is kept as such a folder
in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wherry.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Checkpoint:
    """A folder with config.json, *.safetensors and a tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder.name}: no config.json there, so it is no checkpoint")

    @classmethod
    def find(cls, source: str) -> Checkpoint:
        """The checkpoint that a folder, a GGUF file or a hub id names; downloads or converts."""
        path = Path(source).expanduser()
        if path.is_dir():
            return cls(path)
        if path.suffix == ".gguf" and path.is_file():
            return cls(converted(path))
        if path.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
            raise ConfigError(
                f"{source}: neither a folder, nor a .gguf file, nor a hub id (organisation/model)"
            )
        return cls(_downloaded(source))

    def config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.folder, local_files_only=True)

    def generation_config(self) -> Mapping[str, Any]:
        """The author's own defaults: end-of-text tokens, temperature."""
        file = self.folder / "generation_config.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return found

    @contextmanager
    def tensors(self) -> Iterator[Mapping[str, Any]]:
        """The weights by name; each is read when it is asked for."""
        from contextlib import ExitStack

        from safetensors import safe_open

        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise ConfigError(
                f"{self.folder.name}: no *.safetensors there; other formats can run code"
            )
        with ExitStack() as stack:
            tensors: dict[str, Any] = {}
            for file in files:
                opened = stack.enter_context(safe_open(str(file), framework="pt"))
                tensors.update(dict.fromkeys(opened.keys(), opened))
            yield tensors


def tensor(
    tensors: Mapping[str, Any], name: str, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """One weight. KeyError if the checkpoint has none of that name."""
    found: Tensor = tensors[name].get_tensor(name)
    # A copy in any case: a view of the file would keep all of it in memory.
    return found.to(device=device, dtype=dtype, copy=True)


def converted(gguf: Path) -> Path:
    """A GGUF file as a folder of safetensors in the user's cache; converts it the first time."""
    size = gguf.stat().st_size
    key = hashlib.sha256(f"{gguf.name} {size} {_digest(gguf)}".encode()).hexdigest()[:16]
    target = cache_folder() / "gguf" / f"{gguf.stem}-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a folder of that name is complete, whoever made it.
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            _convert(gguf, Path(made) / "checkpoint")
            try:
                (Path(made) / "checkpoint").rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "wherry"


def _convert(gguf: Path, target: Path) -> None:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        where = {"gguf_file": gguf.name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
        net: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    except ImportError as error:
        raise ConfigError(
            f"{gguf.name}: GGUF needs more packages: pip install 'wherry[llm]' ({error})"
        ) from error
    # It is not quantized any more, but transformers would still refuse to save it.
    net.hf_quantizer, net.is_quantized = None, False
    if hasattr(net.config, "quantization_config"):
        del net.config.quantization_config
    try:
        net.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _digest(file: Path) -> str:
    """Its beginning and its end: the whole would take seconds at each start."""
    with file.open("rb") as opened:
        head = opened.read(1 << 20)
        opened.seek(max(0, file.stat().st_size - (1 << 20)))
        return hashlib.sha256(head + opened.read()).hexdigest()


def _downloaded(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    wanted = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
    try:
        return Path(snapshot_download(hub_id, allow_patterns=wanted))
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise ConfigError(
            f"{hub_id}: no folder of that name, and the hub did not give it: {error}"
        ) from error
