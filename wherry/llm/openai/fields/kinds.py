"""Of which kinds are the values of several fields?"""

from __future__ import annotations

from typing import Annotated

import msgspec

#: What 64 bits hold: a larger number could not even be carried to the model.
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
#: The same, of what there must be at least one.
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
#: How many alternatives' log probabilities may be asked for.
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=20)]
