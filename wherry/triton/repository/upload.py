"""How do the files that a client sends with a load become a model's folder?

Nothing is written before every name is found right. Their size altogether is bounded by that of the
request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from wherry.triton.repository.layout import is_name

MAX_FILES: Final = 1024
MAX_PATH_CHARS: Final = 512
MAX_DEPTH: Final = 16


class BadUpload(Exception):
    """Raised for a file whose name leads elsewhere or cannot be written, and for too many files."""


def save(files: Mapping[str, bytes], root: str) -> None:
    """Write the files (path in the model's folder -> content) below `root`, a new folder."""
    if len(files) > MAX_FILES:
        raise BadUpload(f"{len(files)} files were sent, of at most {MAX_FILES}")
    places = {path: os.path.join(root, *_parts(path)) for path in files}
    for path, content in files.items():
        try:
            os.makedirs(os.path.dirname(places[path]), exist_ok=True)
            with open(places[path], "xb") as file:
                file.write(content)
        except OSError as error:
            raise BadUpload(f"{path!r} cannot be written: {error.strerror}") from None


def _parts(path: str) -> list[str]:
    if len(path) > MAX_PATH_CHARS:
        raise BadUpload(f"a file's path has {len(path)} characters, of at most {MAX_PATH_CHARS}")
    # Triton joins the name to the folder's, so that "file:/1/model.py" is the same file.
    parts = path.removeprefix("/").split("/")
    if len(parts) > MAX_DEPTH or not all(is_name(part) and _can_be_written(part) for part in parts):
        raise BadUpload(f"{path!r} is no file of its folder")
    return parts


def _can_be_written(name: str) -> bool:
    """Whether the file system takes this name: JSON may hold lone surrogates."""
    return name.isprintable() and len(os.fsencode(name)) <= 255
