"""frontends/v2/http/triton_admin.py: what a tritonserver 2.51 took, and what it said."""

from __future__ import annotations

import json

import pytest

from wherry.frontends.v2.http.triton_admin import read_as_triton
from wherry.frontends.v2.triton_words import ToldError

TRACE = "/v2/models/m/trace/setting"
INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"
REGION = "/v2/systemsharedmemory/region/r/register"
CUDA = "/v2/cudasharedmemory/region/r/register"


def read(path: str, body: str) -> object:
    found = read_as_triton(path, body.encode())
    if isinstance(found, ToldError):
        return found.status, found.text
    return json.loads(found) if found else found


@pytest.mark.parametrize(
    ("path", "body", "taken"),
    [
        ("/v2/logging", '{"log_info": null, "nope": 1}', {}),
        ("/v2/logging", "[]", {}),
        ("/v2/logging", '{"log_error": false}', {"log_error": False}),
        ("/v2/logging", '{"log_verbose_level": 4294967301}', {"log_verbose_level": 5}),
        ("/v2/logging", '{"log_verbose_level": 2147483648}', {"log_verbose_level": 0}),
        ("/v2/logging", '\ufeff{"log_info": true}', {"log_info": True}),
        (TRACE, '{"trace_level": ["x"], "trace_mode": 5}', {}),
        (TRACE, '{"trace_rate": " 12x", "trace_count": null}',
         {"trace_rate": "12", "trace_count": None}),
        (TRACE, '{"log_frequency": "-1"}', {"log_frequency": "4294967295"}),
        (INDEX, "", {}),
        (INDEX, "5", {}),
        (LOAD, '{"x": 1}', {}),
        (LOAD, '{"parameters": {"config": "{}"}}', {"parameters": {"config": "{}"}}),
        (UNLOAD, "{", b""),
        (UNLOAD, '{"parameters": {"unload_dependents": 1}}', b""),
        (UNLOAD, '{"parameters": {"unload_dependents": true}}',
         {"parameters": {"unload_dependents": True}}),
        (REGION, '{"key": "/k", "byte_size": 8, "x": 1}', {"key": "/k", "byte_size": 8}),
        ("/v2/models/m/infer", "{}", None),
    ],
)  # fmt: skip
def test_what_is_not_looked_at_goes(path: str, body: str, taken: object) -> None:
    assert read(path, body) == taken


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/logging", "", 500,
         "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("/v2/logging", '{"log_file": ""}', 501,
         "log file location can not be updated through network protocol"),
        ("/v2/logging", '{"log_format": "json"}', 503,
         "invalid argument for --log_format, got: json"),
        ("/v2/logging", '{"log_verbose_level": -1}', 500,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (TRACE, '{"trace_rate": 5}', 500, "attempt to access JSON non-string as string"),
        (TRACE, '{"trace_rate": "many"}', 400, "Unable to parse 'trace_rate', got: many"),
        (TRACE, '{"trace_count": "-2"}', 400,
         "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (TRACE, '{"trace_count": "2147483648"}', 400,
         "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got:"
         " 2147483648"),
        (TRACE, '{"trace_level": ["OFF", "TENSORS"]}', 400,
         "Expect only one trace level 'OFF' is specified"),
        (INDEX, '{"ready": 1}', 500, "attempt to access JSON non-boolean as boolean"),
        (LOAD, '{"parameters": 5}', 500, "attempt to get members for non-object"),
        (LOAD, '{"parameters": {"x": "y"}}', 500, "unexpected error on creating Triton parameter"),
        (REGION, '{"byte_size": 8}', 400, "Shared memory register request has no 'key' field"),
        (REGION, '{"key": "/k", "byte_size": 8, "offset": -1}', 500,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (CUDA, '{"raw_handle": {}}', 500,
         "attempt to access non-existing object member 'b64'"),
        (CUDA, '{"raw_handle": {"b64": "aGk="}, "byte_size": 8, "device_id": 0}', 400,
         "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_in_its_order(path: str, body: str, status: int, text: str) -> None:
    assert read(path, body) == (status, text)
