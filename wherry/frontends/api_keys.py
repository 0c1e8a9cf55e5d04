"""Does a client have one of the server's keys?"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence


class ApiKeys:
    """The keys of one server, whatever the protocol: headers and metadata look alike."""

    REFUSAL = "a valid API key is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def allow(self, headers: Mapping[str, str]) -> bool:
        """Is there no key to know, or does the client know one? Names are in lower case."""
        if not self._keys:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All of them, each in constant time: how long it takes says nothing about a key.
        matches = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        return any(matches)
