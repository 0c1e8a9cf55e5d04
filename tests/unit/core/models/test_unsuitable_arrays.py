"""What would become another value on its way is refused, wherever it comes from."""

from typing import Any

import numpy as np
import pytest

from wherry.core.models.rows import as_array
from wherry.core.values.datatypes import FP32, Form, TensorSpec
from wherry.core.workers.encoding import copied, why_not_sent

MASKED = np.ma.masked_array(np.ones(3, np.float32), [False, True, False])


@pytest.mark.parametrize("value", [MASKED, [MASKED], [np.ones(3), MASKED]])
def test_a_masked_array_is_no_tensor(value: Any) -> None:
    with pytest.raises(TypeError, match="fill it"):
        as_array(value, TensorSpec("x", FP32, (3,), Form.ARRAY))


def test_a_row_that_holds_a_masked_array_is_not_sent() -> None:
    with pytest.raises(TypeError, match="fill it"):
        copied({"a": MASKED})
    assert "fill it" in str(why_not_sent({"a": MASKED}))


@pytest.mark.parametrize(
    "value", [[-1e300, 1.0], np.array([1.0, 4e38]), np.array([1, 4e38], np.longdouble)]
)
def test_a_number_out_of_the_range_of_its_datatype_does_not_become_infinite(value: Any) -> None:
    with pytest.raises(OverflowError, match="out of the range of FP32"):
        as_array(value, TensorSpec("x", FP32, (2,), Form.ARRAY))
    kept = as_array([np.inf, np.nan], TensorSpec("x", FP32, (2,), Form.ARRAY))
    assert kept.tolist()[0] == np.inf
