"""Which parameters may requests to the model repository have, and what is a row of its index?"""

from __future__ import annotations

from typing import Any, Final

from wherry.core.api import AccessDenied, InvalidRequest, Tag
from wherry.server.calls.client_text import without_paths
from wherry.server.content.base64_text import decoded
from wherry.triton.api import ModelStatus

FILE: Final = "file:"
_TEXTS: Final = {"config": "config", "config_patch": "patch"}


def index_row(status: ModelStatus) -> dict[str, str]:
    """Return a row of the index. A model that was never loaded has a name only."""
    row = {"name": status.name, "version": status.version}
    row |= {"state": status.state, "reason": without_paths(status.reason)}
    return {key: value for key, value in row.items() if value}


def load_options(parameters: dict[str, Any], *, upload: bool) -> dict[str, Any]:
    """The parameters of a load request as arguments of ModelControl.load. Files are code that will
    run here: AccessDenied if there are some and clients may not `upload`."""
    if not upload and any(key.startswith(FILE) for key in parameters):
        raise AccessDenied(
            "files of a model may not be sent to this server: it has no API keys and listens on"
            " other addresses than loopback; put the model into its repository, give the server"
            " keys (--api-key-file), or start it with --allow-model-upload"
        )
    options: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key in _TEXTS:
            if not isinstance(value, str):
                problem = f"parameter {key!r} must be a string that holds JSON"
                raise InvalidRequest(problem, tag=Tag.JSON)
            options[_TEXTS[key]] = value
        elif key.startswith(FILE):
            files[key.removeprefix(FILE)] = _content(key, value)
        else:
            raise InvalidRequest(
                f"unknown parameter {key!r}; known are 'config', 'config_patch' and 'file:PATH'"
            )
    return {**options, "files": files} if files else options


def unload_dependents(parameters: dict[str, Any]) -> bool:
    value = parameters.get("unload_dependents", False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"unload_dependents must be true or false, not {value!r}")
    return value


def _content(key: str, value: Any) -> bytes:
    """Base64 in JSON; bytes where the protocol has them."""
    if isinstance(value, bytes):
        return value
    try:
        return decoded(value)
    except (TypeError, ValueError):
        raise InvalidRequest(f"parameter {key!r} must be a file's content in base64") from None
