"""What does a model's call find of the model that it is for?"""

from types import SimpleNamespace
from typing import Any

from wherry.triton.python.calls import Calls


def test_a_model_that_is_gone_is_not_taken_for_one_that_waits() -> None:
    """One that was unloaded since the call was decoded: its runner says why it does not answer."""
    host: Any = SimpleNamespace(models=list)
    assert Calls(host, "caller", lambda answer: None)._can_answer("gone")
