"""How do texts and conversations become tokens, and tokens text?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wherry.core.api import ConfigError, InvalidRequest, PromptTooLong
from wherry.llm.engine.chat_form import ChatForm, Messages, TooManyTurns, limited, text_of
from wherry.llm.engine.damaged import brief
from wherry.llm.engine.tokenizer_files import AGAIN, MOST_FILE_BYTES, WRITTEN


def rendered(render: Callable[[Messages], str], messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as the template `render` writes it.

    If the template refuses a system message between two turns, as Claude Code sends it, all system
    messages are moved to the front. Raises what the template does.
    """
    copied = [dict(message) for message in messages]
    try:
        return render([dict(message) for message in copied])
    except TooManyTurns:
        raise
    except Exception:  # a template is a program: it may raise anything
        if (moved := system_first(copied)) is None:
            raise
    return render(moved)


def system_first(messages: Messages) -> Messages | None:
    """The conversation with the system messages in front; None: they are there already."""
    system = [one for one in messages if one.get("role") == "system"]
    if system == messages[: len(system)] and len(system) < 2:
        return None
    texts = [text_of(one.get("content")) for one in system]
    if not all(isinstance(text, str) for text in texts):
        return None
    others = [one for one in messages if one.get("role") != "system"]
    return [{"role": "system", "content": "\n\n".join(map(str, texts))}, *others]


Many = TypeVar("Many", str, list[int])

#: Arguments of apply_chat_template that are not template variables. Requests may not set them: a
#: template from a request would be foreign code in the engine's process.
OURS = {
    "chat_template", "conversation", "max_length", "messages", "padding", "return_dict",
    "return_assistant_tokens_mask", "return_tensors", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
}  # fmt: skip


#: Files of a tokenizer's vocabulary, beside those of SentencePiece and tiktoken.
VOCABULARIES: Final = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tekken.json")
#: Characters of a long text that are tokenized at a time to estimate its length.
PART: Final = 16 * 1024
#: Characters of a chat template's error message that clients see.
MOST_ERROR_CHARS: Final = 500


class _Settings(msgspec.Struct):
    """The fields of tokenizer_config.json that are checked before transformers reads the file."""

    own: Any = msgspec.field(default=None, name="auto_map")


class Tokenizer:
    """A checkpoint's tokenizer and chat template.

    Texts that must have more than `most_tokens` tokens are refused without tokenizing all of it.
    """

    def __init__(self, inner: Any, most_tokens: int | None = None) -> None:
        self.inner = inner
        self._bytes = byte_alphabet()
        #: Whether the vocabulary is byte-level (see `byte_alphabet`).
        pieces = self.inner.convert_ids_to_tokens(self.inner.encode(" a", add_special_tokens=False))
        self._byte_level = any("\u0120" in piece for piece in pieces)
        self.most_tokens = most_tokens
        #: By the template's text: a tokenizer may have one for tools.
        self._forms: dict[str | None, ChatForm] = {}
        self._longest = max(map(len, self.inner.get_vocab()), default=1)

    @classmethod
    def load(cls, folder: Path, most_tokens: int | None = None) -> Tokenizer:
        """Load the tokenizer from a checkpoint's folder. ConfigError if there is none, or if it
        needs code of the checkpoint. Reads files; blocks."""
        from transformers import AutoTokenizer

        for file in folder.glob("*"):
            if file.suffix in WRITTEN and file.is_file() and file.stat().st_size > MOST_FILE_BYTES:
                raise ConfigError(
                    f"{folder.name}: {file.name} has more than {MOST_FILE_BYTES >> 20} MiB"
                )
        settings = folder / "tokenizer_config.json"
        try:
            if (
                settings.is_file()
                and msgspec.json.decode(settings.read_bytes(), type=_Settings).own
            ):
                raise ConfigError("auto_map: it brings code of its own, which is never run")
            inner = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            _check_template(inner)
            return cls(inner, most_tokens)
        except Exception as error:  # of any type, by what is in the files
            why = brief(error)
            if not isinstance(error, ConfigError):
                found = ", ".join(
                    filter(_is_tokenizer, sorted(one.name for one in folder.iterdir()))
                )
                why = f"{found or 'none of its files is there'}: {why}: {AGAIN}"
            raise ConfigError(f"{folder.name}: its tokenizer cannot be read: {why}") from error

    @property
    def end(self) -> int | None:
        found: int | None = self.inner.eos_token_id
        return found

    @property
    def has_chat_template(self) -> bool:
        return bool(self.inner.chat_template)

    @property
    def chat_template(self) -> str:
        template = self.inner.chat_template or ""
        return "\n".join(template.values()) if isinstance(template, dict) else template

    def added_tokens(self) -> dict[str, int]:
        """The tokens beside those of the vocabulary, special or not, with their ids."""
        added = getattr(self.inner, "added_tokens_decoder", {})  # Mistral's own has none
        return {token.content: number for number, token in added.items()}

    def special_tokens(self) -> dict[str, int]:
        """The tokens that an answer's text leaves out, by their own texts."""
        added = getattr(self.inner, "added_tokens_decoder", {})
        return {token.content: number for number, token in added.items() if token.special}

    def encode(
        self, text: str, *, special: bool = True, keep: int | None = None, side: str = "left"
    ) -> list[int]:
        """The tokens of a text, with the tokenizer's prefix (such as BOS) if `special`.
        InvalidRequest if it is too long or not valid Unicode. With `keep` at least that number of
        its tokens, or all: the last ones, or the first ones if the `side` that may be missing is
        "right"."""
        most = self.most_tokens
        if keep is not None:
            text, most = truncated(text, (keep + 1) * self._longest, side), None
        if most is not None and len(text) > most * self._longest:
            raise PromptTooLong(
                f"the text has {len(text)} characters, more than {most} tokens can hold: this"
                f" model's maximum context length is {most} tokens",
                field="prompt",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:  # a lone surrogate
            raise InvalidRequest(f"the text is not Unicode: {error}", field="prompt") from error
        if most is not None and len(text) > 2 * most:
            self._check_length(text, most)
        tokens: list[int] = self.inner.encode(text, add_special_tokens=special)
        return tokens

    def _check_length(self, text: str, most_tokens: int) -> None:
        """Refuse a text that is far too long after tokenizing parts of it: tokenizing all would
        take seconds and a hundred bytes a token. A few tokens of error at the parts' borders do not
        matter."""
        tokens = 0
        for first in range(0, len(text), PART):
            part = text[first : first + PART]
            tokens += len(self.inner.encode(part, add_special_tokens=False))
            if tokens > 2 * most_tokens:
                raise PromptTooLong(
                    f"the text has more than {2 * most_tokens} tokens: this model's maximum context"
                    f" length is {most_tokens} tokens",
                    field="prompt",
                )

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        backend = getattr(self.inner, "backend_tokenizer", None)
        if backend is not None:  # transformers' decode adds layers of Python
            fast: str = backend.decode(list(tokens), skip_special_tokens=skip_special)
            return fast
        slow: str = self.inner.decode(list(tokens), skip_special_tokens=skip_special)
        return slow

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        special: bool = False,
        keep: int | None = None,
        side: str = "left",
    ) -> list[int]:
        """Render a conversation with the chat template, and tokenize it.

        `options` are variables of the template; `add_generation_prompt` is true by default.
        InvalidRequest quotes the template's error. `special`, `keep` and `side` as in
        `encode`.
        """
        if not self.has_chat_template:
            raise InvalidRequest(
                "this model has no chat template: send a prompt instead of messages",
                field="prompt",
            )
        for name in OURS & (options or {}).keys():
            raise InvalidRequest(
                f"template: {name!r} is not for a request to set", field="template"
            )
        template = self._template(with_tools=bool(tools))
        render = partial(
            self.inner.apply_chat_template,
            tools=[dict(tool) for tool in tools] if tools else None,
            tokenize=False,
            **{"add_generation_prompt": True, **(options or {}), "chat_template": template},
        )
        form = self._form(template)
        try:
            with limited():
                text: str = rendered(lambda talk: render(form.of(talk)), messages)
        except Exception as error:  # a template is a program: it may raise anything
            raise InvalidRequest(
                f"the chat template refuses these messages: {str(error)[:MOST_ERROR_CHARS]}",
                field="prompt",
            ) from error
        return self.encode(text, special=special, keep=keep, side=side)

    def _template(self, *, with_tools: bool) -> str | None:
        """The text of the template that renders a conversation; None: transformers finds it."""
        found = self.inner.chat_template
        if isinstance(found, dict):
            found = (found.get("tool_use") if with_tools else None) or found.get("default")
        return found if isinstance(found, str) else None

    def _form(self, template: str | None) -> ChatForm:
        if (known := self._forms.get(template)) is not None:
            return known
        render = partial(
            self.inner.apply_chat_template,
            tokenize=False,
            add_generation_prompt=True,
            chat_template=template,
        )
        made = self._forms[template] = ChatForm(render)
        return made

    def names(self, tokens: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them, such as "\u0120word"."""
        found: list[str] = self.inner.convert_ids_to_tokens(list(tokens))
        return found

    def piece(self, token: int) -> tuple[str, bytes]:
        """A single token as text, and as the bytes it stands for."""
        raw: str = self.inner.convert_ids_to_tokens(token) or ""
        text = self.decode([token], skip_special=False)
        if self._byte_level and raw and all(character in self._bytes for character in raw):
            return text, bytes(self._bytes[character] for character in raw)
        if len(raw) == 6 and raw.startswith("<0x"):  # a byte in SentencePiece
            return text, bytes([int(raw[3:5], 16)])
        if raw.startswith("\u2581"):
            return raw.replace("\u2581", " "), raw.replace("\u2581", " ").encode()
        return text, text.encode()


def _check_template(inner: Any) -> None:
    """ConfigError if a chat template is invalid. How it renders a conversation does not matter
    here."""
    from jinja2 import TemplateSyntaxError

    templates = inner.chat_template
    for text in templates.values() if isinstance(templates, dict) else [templates or ""]:
        try:
            if not isinstance(text, str):
                raise ConfigError("it is not text")
            with limited():
                inner.apply_chat_template([_HELLO], chat_template=text, tokenize=False)
        except Exception as error:  # noqa: BLE001 - a template is a program: it may raise anything
            if not isinstance(error, ConfigError | RecursionError | TemplateSyntaxError):
                continue
            line = getattr(error, "lineno", None)
            place = f"line {line}: " if line else ""
            raise ConfigError(
                f"chat_template: {place}{brief(error)}: {AGAIN}, or remove the template: then the"
                " model completes prompts only"
            ) from None


_HELLO: Final = {"role": "user", "content": "Hi"}


def _is_tokenizer(name: str) -> bool:
    return Path(name).suffix in (".model", ".tiktoken") or name in VOCABULARIES


def truncated(items: Many, keep: int, side: str) -> Many:
    """The last `keep` items, or the first ones if the `side` that is cut off is "right"."""
    if len(items) <= keep:
        return items
    return items[:keep] if side == "right" else items[len(items) - keep :]


def byte_alphabet() -> dict[str, int]:
    """The byte for each character of byte-level vocabularies, which write each byte as a printable
    character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return alphabet
