"""Are a tokenizer's files whole, and of this model? Checked before weights are read.

For a damaged file libraries raise an unclear error, or none: without merges, or with another
model's vocabulary, they produce other tokens than the model was trained with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wherry.llm.engine.damaged import brief

AGAIN: Final = "download the checkpoint again"
#: A large tokenizer.json has 35 MB.
MOST_FILE_BYTES: Final = 128 << 20
#: Suffixes of the files that hold a tokenizer.
WRITTEN: Final = {".json", ".model", ".txt", ".jinja", ".tiktoken"}
#: JSON files beside tokenizer.json that are objects, if they are there.
OBJECTS: Final = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json",
)  # fmt: skip


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any]
    type: str | None = None
    merges: list[Any] | None = None
    ignore_merges: bool | None = None

    @property
    def lacks_merges(self) -> bool:
        return self.type in (None, "BPE") and not self.merges and not self.ignore_merges


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


class _Problem(Exception):
    """What is wrong with one file."""


def problem(folder: Path, config: Mapping[str, Any]) -> str:
    """What is wrong with a folder's tokenizer, with file and remedy; "" if nothing is. Reads its
    files, bounded in size."""
    try:
        for file in sorted(folder.glob("*")):
            if file.suffix in WRITTEN and not (file.is_file() or file.is_dir()):
                raise _Problem(f"{file.name} is a link to nothing, or no file: {AGAIN}")
            if file.suffix in WRITTEN and file.is_file() and file.stat().st_size > MOST_FILE_BYTES:
                raise _Problem(f"{file.name} has more than {MOST_FILE_BYTES >> 20} MiB: {AGAIN}")
        objects = {name: _read(folder / name, dict[str, Any]) for name in OBJECTS}
        found = {name: one for name, one in objects.items() if one is not None}
        text = config.get("text_config")
        size = (text if isinstance(text, dict) else config).get("vocab_size")
        _check_vocabulary(folder, found, size if type(size) is int else 1 << 24)
    except _Problem as error:
        return str(error)
    return ""


def _read(file: Path, kind: Any) -> Any:
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise _Problem(f"{file.name}: {brief(error)}: {AGAIN}") from None


def _check_vocabulary(folder: Path, found: Mapping[str, Any], size: int) -> None:
    """Check that each token can be produced, and is one of the model's."""
    read: _Tokenizer | None = _read(folder / "tokenizer.json", _Tokenizer)
    if read is not None:
        name, vocab, added = "tokenizer.json", read.model.vocab, read.added_tokens
        numbers = {token.content: token.id for token in added}
        if not vocab and not added:
            raise _Problem(f"{name}: it has no tokens: {AGAIN}")
        if isinstance(vocab, dict) and read.model.lacks_merges:
            _check_single(name, "model.merges has none", vocab.keys() - numbers.keys())
    else:
        name, vocab, numbers = "vocab.json", _read(folder / "vocab.json", dict[str, int]) or {}, {}
        if vocab and not (folder / "merges.txt").is_file():
            _check_single("merges.txt", "it is missing", vocab)
    if isinstance(vocab, dict):
        most = max((n for word, n in vocab.items() if word not in numbers), default=0)
    else:
        most = len(vocab) - len(numbers) - 1
    if most >= size:
        raise _Problem(
            f"{name}: its tokens go up to {most}, and config.json's vocab_size is {size}: it is"
            f" another model's: {AGAIN}"
        )
    if read is not None:
        words = vocab if isinstance(vocab, dict) else {one[0]: 0 for one in vocab if one}
        _check_ends(found, {**words, **numbers}, size)


def _check_single(name: str, why: str, words: Iterable[str]) -> None:
    """Without merges a text becomes single characters: refuse a vocabulary of longer ones."""
    known = list(words)
    if 2 * (longer := sum(len(word) > 1 for word in known)) > len(known):
        raise _Problem(
            f"{name}: {why}, so that {longer} of {len(known)} tokens could never be made: {AGAIN}"
        )


def _check_ends(found: Mapping[str, Any], known: Mapping[str, int], size: int) -> None:
    """Check that the tokens that begin and end a text are the model's: else each request would be
    refused, or none would end. Others may be unused, such as Gemma's for images."""
    for name in ("bos_token", "eos_token"):
        token = found.get("tokenizer_config.json", {}).get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            # transformers assigns the next id to one that is missing.
            number = known.get(text, max(known.values(), default=0) + 1)
            if not 0 <= number < size:
                raise _Problem(
                    f"tokenizer.json: {name} {text[:40]!r} is {number}, and config.json's"
                    f" vocab_size is {size}: {AGAIN}"
                )
