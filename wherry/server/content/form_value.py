"""What is one value of a form, a query string, or a body that is a file?"""

from __future__ import annotations

import msgspec

from wherry.core.api import Buffer


class NamedValue(msgspec.Struct):
    """One value of a form or a query string; a body that is one file has the name ""."""

    name: str
    #: Text of a field; the bytes of a file, or of a field of a multipart form.
    data: str | Buffer
    #: A file's name as its sender gave it: data, never a path.
    filename: str | None = None
    media_type: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether its sender calls it a file, and no field of a form."""
        return self.filename is not None or self.name == ""
