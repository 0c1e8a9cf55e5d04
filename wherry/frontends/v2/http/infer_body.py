"""What is in the body of a request, once it is decoded?"""

from __future__ import annotations

import msgspec

from wherry.frontends.v2.output_codec import OutputCodec
from wherry.frontends.v2.parameters import Parameters
from wherry.frontends.v2.shared_memory import Window
from wherry.values.request import Columns


class Wanted(msgspec.Struct):
    """One output as the client asked for it."""

    codec: OutputCodec
    binary: bool
    #: So many "score:index" strings in its place; 0: the tensor itself.
    classes: int
    #: Where its data goes, if not into the answer.
    window: Window | None = None


class InferBody(msgspec.Struct):
    """A decoded request."""

    columns: Columns
    rows: int
    id: str
    parameters: Parameters
    #: None: every output, as JSON.
    wanted: list[Wanted] | None
    #: The client named the outputs.
    named: bool = False
    #: What the columns hold in memory, if that was counted.
    held_bytes: int | None = None

    @property
    def output_names(self) -> list[str] | None:
        """Those that the client named; None: it wants whatever there is."""
        if self.wanted is None or not self.named:
            return None
        return [one.codec.name for one in self.wanted]
