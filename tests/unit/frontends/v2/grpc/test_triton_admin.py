"""frontends/v2/grpc/triton_admin.py: what a tritonserver 2.51 took, and what it said."""

from __future__ import annotations

from typing import Any

import pytest

from wherry.frontends.v2.grpc.triton_admin import READERS
from wherry.frontends.v2.triton_settings import NotTaken


def settings(**given: Any) -> dict[str, Any]:
    return {"settings": given}


def parameters(**given: Any) -> dict[str, Any]:
    return {"model_name": "m", "parameters": given}


@pytest.mark.parametrize(
    ("method", "request_", "taken"),
    [
        ("LogSettings", settings(nope={"bool_param": True}), settings()),
        ("LogSettings", settings(log_info={"bool_param": True}),
         settings(log_info={"bool_param": True})),
        ("LogSettings", settings(log_verbose_level={"uint32_param": 2**32 - 1}),
         settings(log_verbose_level={"uint32_param": 0})),
        ("TraceSetting", settings(trace_mode={"value": ["x"]}, trace_rate={"value": ["5x"]}),
         settings(trace_rate={"value": ["5"]})),
        ("TraceSetting", settings(trace_level={"value": ["x"]}), settings()),
        ("TraceSetting", settings(trace_level={}), settings(trace_level={"value": []})),
        ("RepositoryModelUnload", parameters(x={"int64_param": 1}), parameters()),
        ("RepositoryModelLoad", parameters(config={"string_param": "{}"}),
         parameters(config={"string_param": "{}"})),
    ],
)  # fmt: skip
def test_what_is_not_looked_at_goes(method: str, request_: Any, taken: Any) -> None:
    assert READERS[method](request_) == taken


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        ("LogSettings", settings(log_file={"string_param": ""}), "UNIMPLEMENTED",
         "log file location can not be updated through network protocol"),
        ("LogSettings", settings(log_info={"uint32_param": 1}), "INVALID_ARGUMENT",
         "expect boolean for 'log_info'"),
        ("LogSettings", settings(log_format={"string_param": "json"}), "INVALID_ARGUMENT",
         "invalid argument for log_format, got: json"),
        ("TraceSetting", settings(trace_rate={"value": ["OFF"]}), "INVALID_ARGUMENT",
         "Unable to parse 'trace_rate', got: OFF"),
        ("TraceSetting", settings(trace_count={"value": ["1", "2"]}), "INVALID_ARGUMENT",
         "expect only 1 value for 'trace_count'"),
        ("RepositoryModelLoad", parameters(x={"string_param": "x"}), "INVALID_ARGUMENT",
         "unrecognized load parameter 'x'."),
        ("RepositoryModelLoad", parameters(config={"bool_param": True}), "INVALID_ARGUMENT",
         "invalid value type for load parameter 'config', expected string_param."),
        ("RepositoryModelUnload", parameters(unload_dependents={"string_param": "x"}),
         "INVALID_ARGUMENT",
         "invalid value type for 'unload_dependents' parameter, expected bool_param."),
    ],
)  # fmt: skip
def test_what_is_refused_is_told(method: str, request_: Any, code: str, text: str) -> None:
    with pytest.raises(NotTaken) as caught:
        READERS[method](request_)
    assert caught.value.told[1:] == (code, text)
