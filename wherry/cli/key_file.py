"""Which API keys has the operator given, and is each of them fit to be one?"""

from __future__ import annotations

import logging
import stat
from collections.abc import Sequence
from pathlib import Path

from wherry.frontends.access.api_keys import MIN_KEY_CHARS, parse_key, parse_key_file
from wherry.values.errors import ConfigError

log = logging.getLogger("wherry")


def checked(keys: Sequence[str], where: str) -> None:
    """ConfigError, without the key, for one that is none or could be guessed."""
    for number, key in enumerate(keys, 1):
        parse_key(key, f"{where} (key {number})", shortest=MIN_KEY_CHARS)


def keys_of(path: Path) -> list[str]:
    """The keys of a file, each as KEY or NAME: KEY. ConfigError if it has none."""
    where = f"api_key_file {path}"
    try:
        text = path.read_text(encoding="utf-8")
        open_to_all = path.stat().st_mode & stat.S_IROTH
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror or 'it cannot be read'}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: it is no UTF-8 text (byte {error.start})") from None
    if open_to_all:
        log.warning("every user of this machine can read the keys", extra={"api_key_file": path})
    return parse_key_file(text, where)
