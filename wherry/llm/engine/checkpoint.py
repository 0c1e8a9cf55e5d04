"""Where are a model's weights, configuration and tokenizer, and in which format?

In a folder as `save_pretrained` writes it, a repository of the Hugging Face hub (downloaded into
its cache), or a GGUF file, which transformers converts once into such a folder in the user's cache.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec

from wherry.core.api import ConfigError, cache_folder
from wherry.llm.engine import gguf_file
from wherry.llm.engine.damaged import AGAIN, brief
from wherry.llm.engine.known import ANOTHER_ENGINE, QUANTIZER_FILES, refusals

#: Datatypes of weights by their safetensors names.
FLOATS: Final = ("F32", "BF16", "F16")
#: Those of lookup tables; weights are never stored in them.
INDICES: Final = ("I64", "BOOL")
#: Tensors from older versions of transformers that are not weights: masks, frequencies.
NO_WEIGHT: Final = re.compile(r"(attn\.bias|attention\.bias|masked_bias|inv_freq|position_ids)$")
#: A large config.json has 100 KiB, the index of a large checkpoint 10 MB.
MOST_JSON_BYTES: Final = 32 << 20
#: The largest chat templates that are published have 20,000 characters.
MOST_TEMPLATE_BYTES: Final = 1 << 20
#: Fields of a config.json that one error message names.
MOST_REFUSALS: Final = 5
#: Files of adapters and sentence-transformers: config.json does not describe all of the model.
NOT_ALONE: Final = {
    "adapter_config.json": "an adapter (LoRA): merge it into its model first",
    **dict.fromkeys(
        QUANTIZER_FILES,
        "quantized weights are not computed here; use a checkpoint of floats, or " + ANOTHER_ENGINE,
    ),
}
#: Goes up when conversion changes: older folders in the cache are not used.
_CONVERSION: Final = 2
_SHARD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


log = logging.getLogger("wherry")

#: Seconds between two lines of one stage.
STAGE_SECONDS: Final = 10.0


@contextmanager
def stage(
    name: str,
    progress: Callable[[], Mapping[str, Any]] = dict,
    *,
    every: float = STAGE_SECONDS,
    **of: Any,
) -> Iterator[None]:
    """Log that a stage of a load begins, and until it ends what `progress` returns, which another
    thread calls. `of` is in each line."""
    began, ended = monotonic(), threading.Event()

    def report() -> None:
        while not ended.wait(every):
            log.info(name, extra={**of, **progress(), "seconds": round(monotonic() - began)})

    log.info(name, extra=of)
    thread = threading.Thread(target=report, name="wherry-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Checkpoint:
    """A folder with config.json, *.safetensors and a tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.is_file():
            raise ConfigError(f"{folder.name}: neither a folder nor a .gguf file")
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder.name}: no config.json there, so it is not a checkpoint")

    @classmethod
    def find(cls, source: str) -> Checkpoint:
        """The checkpoint of a folder, a GGUF file or a hub id. Blocks: may download or convert.
        ConfigError if there is none."""
        path = Path(source).expanduser()
        if path.is_dir():
            return cls(path)
        if path.suffix == ".gguf" and path.is_file():
            return cls(converted(path))
        if message := missing(source):
            raise ConfigError(message)
        return cls(path if path.exists() else _downloaded(source))

    def config(self, *, exact: bool = True) -> Any:
        """The configuration as transformers reads it. ConfigError names each field that the engine
        does not compute exactly, unless it need not be `exact`."""
        from transformers import AutoConfig

        for name, remedy in NOT_ALONE.items() if exact else ():
            if (self.folder / name).exists():
                raise ConfigError(f"{self.folder.name}: {name}: {remedy}")
        if exact and (found := refusals(self.object("config.json"))):
            listed = "\n  ".join(map(str, found[:MOST_REFUSALS]))
            raise ConfigError(f"{self.folder.name}: config.json:\n  {listed}")
        try:
            return AutoConfig.from_pretrained(
                self.folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # transformers' validation may raise anything
            raise ConfigError(
                f"{self.folder.name}: config.json: {brief(error)}: {AGAIN}"
            ) from error

    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json: the author's defaults, such as end-of-text tokens and
        temperature."""
        name = "generation_config.json"
        return self.object(name) if (self.folder / name).is_file() else {}

    def chat_template(self) -> str:
        """The texts of the chat templates; "" if there is none."""
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            with file.open("rb") as opened:
                return opened.read(MOST_TEMPLATE_BYTES).decode(errors="replace")
        if not (self.folder / "tokenizer_config.json").is_file():
            return ""
        found = self.object("tokenizer_config.json").get("chat_template")
        named = found if isinstance(found, list) else [{"template": found}]
        texts = (one.get("template") for one in named if isinstance(one, dict))
        return "\n".join(text for text in texts if isinstance(text, str))

    def weight_files(self) -> list[Path]:
        one, index = self.folder / "model.safetensors", "model.safetensors.index.json"
        if one.is_file():
            return [one]
        if not (self.folder / index).is_file():
            raise ConfigError(
                f"{self.folder.name}: no model.safetensors there, and no {index}; other formats"
                " can run code: save the model with safetensors"
            )
        shards = self.object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ConfigError(f"{self.folder.name}: {index}: weight_map must be an object of names")
        files = []
        for name in sorted({n if isinstance(n, str) else repr(n) for n in shards.values()}):
            if not _SHARD.fullmatch(name):
                raise ConfigError(
                    f"{self.folder.name}: {index}: weight_map: {name[:80]!r} is not a name of a"
                    " .safetensors file in the checkpoint's own folder"
                )
            if not (self.folder / name).is_file():
                raise ConfigError(f"{self.folder.name}: {index}: weight_map: {name} is missing")
            files.append(self.folder / name)
        return files

    @contextmanager
    def tensors(self, types: Collection[str] = FLOATS) -> Iterator[Mapping[str, Any]]:
        """The weights by name, each read on access. ConfigError names tensors that are of other
        types or occur twice."""
        with ExitStack() as stack:
            tensors: dict[str, Any] = {}
            for file in self.weight_files():
                opened = stack.enter_context(opened_tensors(file, "pt"))
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    if name in tensors:
                        raise ConfigError(
                            f"{self.folder.name}: {file.name}: tensor {name!r} is in another file,"
                            " too"
                        )
                    tensors[name] = opened
            self._check_types(tensors, types)
            yield tensors

    def _check_types(self, tensors: Mapping[str, Any], types: Collection[str]) -> None:
        for name, file in tensors.items():
            stored = str(file.get_slice(name).get_dtype())
            if stored not in types and not NO_WEIGHT.search(name):
                raise ConfigError(
                    f"{self.folder.name}: tensor {name!r} is stored as {stored}: only weights of"
                    f" {', '.join(FLOATS)} are computed; dequantize the checkpoint, or"
                    f" {ANOTHER_ENGINE}"
                )

    def object(self, name: str) -> dict[str, Any]:
        """A JSON object from a file of the folder. OSError if it cannot be read; ConfigError if it
        is too large or not an object."""
        file = self.folder / name
        with file.open("rb") as opened:
            text = opened.read(MOST_JSON_BYTES + 1)
        if len(text) > MOST_JSON_BYTES:
            raise ConfigError(
                f"{self.folder.name}: {name} has more than {MOST_JSON_BYTES >> 20} MiB"
            )
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.folder.name}: {name}: {brief(error)}") from error


def missing(source: str) -> str:
    """What is missing, if a source is neither a local path nor a hub id in form; else ""."""
    path = Path(source).expanduser()
    if path.exists():
        return ""
    if path.suffix == ".gguf":
        return f"no such file: {source}"
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        return f"no such folder: {source}"
    return "" if "/" in source else f"no such folder: {source}; a hub id is organisation/model"


def converted(gguf: Path) -> Path:
    """The folder of safetensors for a GGUF file, in the user's cache. Converts it the first time
    (minutes)."""
    size = gguf.stat().st_size
    with gguf.open("rb") as opened:
        tensors = gguf_file.check(gguf.name, opened, size)
    key = hashlib.sha256(f"{_CONVERSION} {gguf.name} {size} {_digest(gguf)}".encode()).hexdigest()[
        :16
    ]
    target = cache_folder() / "gguf" / f"{gguf.stem}-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written elsewhere and renamed: a folder of this name is complete.
        with (
            tempfile.TemporaryDirectory(dir=target.parent) as made,
            stage("converting the file, once", file=gguf.name, bytes=size, tensors=tensors),
        ):
            _convert(gguf, Path(made) / "checkpoint")
            try:
                (Path(made) / "checkpoint").rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def _convert(gguf: Path, target: Path) -> None:
    try:
        from gguf import GGUFReader
        from transformers import AutoModelForCausalLM

        fields = GGUFReader(gguf).fields
        values = {key: f.contents() for key, f in fields.items() if key.startswith("tokenizer.")}
        tokenizer = gguf_file.build_tokenizer(values)
        where = {"gguf_file": gguf.name, "local_files_only": True}
        net: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype="float32", **where)
    except ImportError as error:
        raise ConfigError(
            f"{gguf.name}: GGUF needs more packages: pip install 'wherry[llm]' ({error})"
        ) from error
    except Exception as error:  # of any type, by what is in the file
        raise ConfigError(f"{gguf.name}: not converted: {brief(error)}") from error
    # Dequantized by now, but transformers would still refuse to save it.
    net.hf_quantizer, net.is_quantized = None, False
    if hasattr(net.config, "quantization_config"):
        del net.config.quantization_config
    net.generation_config.eos_token_id = gguf_file.end_tokens(values)
    try:
        net.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _digest(file: Path) -> str:
    """A digest of the file's first and last MiB: reading all of it would take seconds at each
    start."""
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

    patterns = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
    try:
        with stage("downloading", checkpoint=hub_id):
            return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError) as error:
        # The hub's client chains a dozen errors: the last one is the clearest.
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"{hub_id}: no folder of that name, and the hub did not give it: {why}"
        ) from None


class StoredTensor(NamedTuple):
    dtype: str
    shape: Sequence[int]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        bits = re.search(r"\d+", self.dtype)  # F32, F8_E4M3; BOOL has none
        return self.elements * int(bits[0] if bits else 8) // 8


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file's header, by name. ConfigError if it is damaged, or the
    file's length is not the one in it."""
    with opened_tensors(file, "np") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - no dict
        return {n: StoredTensor(str(s.get_dtype()), s.get_shape()) for n, s in slices.items()}


@contextmanager
def opened_tensors(file: Path, framework: str) -> Iterator[Any]:
    """A safetensors file. ConfigError if its header is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(str(file), framework=framework)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(
            f"{file.parent.name}: {file.name}: not read: {brief(error)}; download it again"
        ) from error
    with opened:
        yield opened
