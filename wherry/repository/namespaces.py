"""Which of several models of one name is meant, where each repository has names of its own?

A server with namespaces knows a model by its key: its repository's number, from 1 up, and its name.

    2::resnet

No name of a model has a colon, so that a key is not mistaken for a name.
"""

from __future__ import annotations

_BETWEEN = "::"


def key_of(namespace: str, name: str) -> str:
    """Return the key of a model; it is the name, without a namespace."""
    return f"{namespace}{_BETWEEN}{name}" if namespace else name


def split(key: str) -> tuple[str, str]:
    """Return namespace and name of a key."""
    namespace, _, name = key.rpartition(_BETWEEN)
    return namespace, name


def name_of(key: str) -> str:
    """Return the name by which clients call a model, of its key or of itself."""
    return key.rpartition(_BETWEEN)[2]
