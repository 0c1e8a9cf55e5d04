"""What would Triton have said where this server refuses a request? For `--triton-strict`.

A table only. Most texts are Triton's with what helps behind it: that goes, its status comes, and
the request's id stands before those that Triton's core writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple


class ToldError(NamedTuple):
    """An error as a client sees it: status of HTTP, code of gRPC, text."""

    status: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of texts that match as a whole."""

    ours: re.Pattern[str]
    #: With the groups of `ours`; None: as it is.
    text: str | None
    #: None: ours.
    status: int | None
    code: str | None
    #: The request's id stands before it.
    with_id: bool


def _rule(
    ours: str,
    text: str | None = None,
    status: int | None = None,
    code: str | None = None,
    *,
    with_id: bool = False,
) -> Rule:
    return Rule(re.compile(ours, re.DOTALL), text, status, code, with_id)


#: Detail that this server gives behind Triton's words.
_MORE: Final = r"(?: \(.*\)|: .*|;.*|, for model '[^']*')?"
_DATATYPES: Final = "BOOL|U?INT(?:8|16|32|64)|FP(?:16|32|64)|BF16|BYTES"
_UNSIGNED: Final = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_ONE_OF: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'"
)
_NOTE: Final = (
    ". NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be"
    " prepended to each input shape. If you want to specify the full shape including the batch dim"
    " in your input dims config, try setting max_batch_size to zero. See the model configuration"
    " docs for more info on max_batch_size."
)

#: The first that matches holds.
RULES: Final = (
    # JSON: Triton's library reports its faults as INTERNAL.
    _rule(r"input '[^']*' of model '[^']*': data\[.*\]: expected int [<>]= .*",
          "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
          500),
    _rule(r"Unable to parse 'parameters': attempt to access JSON non-object as object.*",
          "failed to get request params.: attempt to get members for non-object", 500),
    _rule(r"Unable to parse 'outputs': attempt to access JSON non-object as object.*",
          "Unable to parse 'name': attempt to access non-existing object member 'name'", 500),
    _rule(r"Unable to parse 'inputs': attempt to access JSON non-object as object.*",
          f"{_ONE_OF}. But no field is set"),
    _rule(rf"({re.escape(_ONE_OF)}\. But .*?)(?: \(input .*\))?", r"\1"),
    _rule(r"(Unable to (?:parse|set) [^:]*: (?:attempt|Shape).*?)(?: \(.*\))?", r"\1", 500),
    _rule(r"(attempt to get members for non-object) \(.*\)", r"\1", 500),
    _rule(r"failed to parse the request JSON buffer: .*", None, 500),
    _rule(r"parameter '(priority|timeout)' must be .*", rf"Unable to parse '\1': {_UNSIGNED}", 500),
    _rule(r"parameter '(sequence_id)' must be .*",
          r"Unable to parse '\1': attempt to access JSON non-string as string", 500),
    _rule(r"parameter '(sequence_start|sequence_end)' must be .*",
          r"Unable to parse '\1': attempt to access JSON non-boolean as boolean", 500),
    _rule(r"output '[^']*': parameter 'classification' must be .*",
          f"Unable to set 'classification': {_UNSIGNED}", 500),
    _rule(r"input '[^']*' of model '[^']*': expected str, .*",
          "Unable to parse JSON bytes array: attempt to access JSON non-string as string", 500),
    _rule(r"log_verbose_level must be .*", "attempt to access JSON non-unsigned-integer as"
          " unsigned-integer", 500),
    _rule(r"log_(?:info|warning|error) must be .*",
          "attempt to access JSON non-boolean as boolean", 500),
    _rule(r"(Attempting to set invalid trace setting :trace file name is not given); .*", r"\1"),
    _rule(r"((?:(?:log|trace) file location|trace mode) can not be updated through network"
          r" protocol); .*", r"\1"),
    _rule(r"(unexpected inference (?:in|out)put .*); it has .*", r"\1"),
    _rule(r"(Unsupported compression type) '.*", r"\1"),
    _rule(r"trace_level must be a list.*", "attempt to access JSON non-array as array", 500),
    _rule(r"parameters must be an object",
          "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as"
          " object", 500),
    _rule(r"id: expected str", "Unable to parse 'id': attempt to access JSON non-string as string",
          500),
    _rule(r"ready must be .*", "attempt to access JSON non-boolean as boolean", 500),
    _rule(r"parameter 'config' must be .*", "attempt to access JSON non-string as string", 500),
    # The core's checks of a request
    _rule(r"(input '[^']*' batch size does not match other inputs for '[^']*')" + _MORE, r"\1",
          with_id=True),
    _rule(r"unexpected shape for input ('[^']*') for model ('[^']*')\. Expected \[-1.*, got \[\].*",
          r"input \1 has no shape but model requires batch dimension for \2", with_id=True),
    _rule(r"unexpected shape for input ('[^']*' for model '[^']*')\. Expected .*, got"
          r" (\[\d+(?:,\d+)*(?:,-\d+)+(?:,-?\d+)*\])",
          r"All input dimensions should be specified for input \1, got \2", with_id=True),
    _rule(r"(unexpected shape for input .* Expected \[-1.*)", r"\1" + _NOTE, with_id=True),
    _rule(r"unexpected shape for input .*", with_id=True),
    _rule(r"expected (?:\d+ inputs|number of inputs between \d+ and \d+) but got .*", with_id=True),
    _rule(r"out of bounds index 0: .*", with_id=True),
    _rule(rf"inference input '([^']*)' data-type is '(?!(?:{_DATATYPES})').*",
          r"invalid datatype for input \1"),
    _rule(r"inference input '[^']*' data-type is .*", with_id=True),
    _rule(r"inference request batch-size must be .*", with_id=True),
    _rule(r"input '[^']*' has (\d+) rows, and a request to model '([^']*)' at most (\d+) .*",
          r"inference request batch-size must be <= \3 for '\2'", with_id=True),
    _rule(r"input '[^']*' already exists in request", with_id=True),
    _rule(r"input byte size mismatch for .*", with_id=True),
    _rule(r"expected \d+ string elements for .*", with_id=True),
    _rule(r"unexpected number of string elements .*", with_id=True),
    _rule(r"(incomplete string length indicator for inference input '[^']*')(, expecting .*), "
          r"(for model '[^']*')",
          r"\1 \3\2. Please make sure the string length indicator is in one buffer.", with_id=True),
    _rule(r"(incomplete string data for .* available), for model .*", r"\1"),
    _rule(r"(For BYTE datatype raw input '[^']*', the model must have input shape \[1\]).*", r"\1",
          with_id=True),
    _rule(r"Raw request must only have 1 input .*", with_id=True),
    # Binary tensors, parameters, generate
    _rule(r"(unexpected additional input data for model '[^']*').*", r"\1"),
    _rule(r"(receiving (?:FP16|BF16) data via JSON is not supported\. .*) of model '[^']*'", r"\1"),
    _rule(r"(parameter '[^']*' has invalid type\. It should be either 'int', 'bool',) .*",
          r"\1 or 'string'."),
    _rule(r"(parameter keys starting with 'triton_' are reserved for Triton usage and should not be"
          r" specified).*", r"\1."),
    _rule(r"(HTTP end point doesn't support models with decoupled transaction policy).*", r"\1"),
    _rule(r"input '([^']*)' of model '[^']*': \d+ elements do not fill the shape .*",
          r"The schema can not convert input '\1' to tensor with proper shape"),
    _rule(r"generate expects model to produce exactly 1 response, .*",
          "generate expects model to produce exactly 1 response, use generate stream for model that"
          " generates various number of responses", 200),
    # Models, their life, shared memory, settings
    _rule(r"failed to load '(.*)', failed to poll from model repository:"
          r" (Invalid stub name: contains invalid characters): .*",
          r"load failed for model '\1': version 1 is at UNAVAILABLE state: Internal: \2;"),
    _rule(r"(failed to load '[^']*', failed to poll from model repository).*", r"\1",
          500, "INTERNAL"),
    _rule(r"(Failed to process the request\(s\) for model) instance ('[^']*', message: Number of"
          r" InferenceResponse objects do not match the number of InferenceRequest objects):"
          r" execute\(\) returned (\d+) for (\d+) requests",
          r"\1 \2. InferenceRequest(s) size is:\4, and InferenceResponse(s) size is:\3\n"),
    _rule(r"(Failed to process the request\(s\) for model) instance ('[^']*', message: Expected an"
          r" 'InferenceResponse' object in the execute function return list, found type)"
          r" (<class '[^']*'>)", r"\1 \2 '\3'."),
    _rule(r"Failed to process the request\(s\) for model instance (.*)",
          r"Failed to process the request(s) for model \1"),
    _rule(r"Unable to open shared memory region: '[^']*' \(key ('[^']*')\).*",
          r"Unable to open shared memory region: \1", 500, "INTERNAL"),
    _rule(r"shared memory region '[^']*': key ('[^']*') is no name .*",
          r"Unable to open shared memory region: \1", 500, "INTERNAL"),
    _rule(r"('region name' is necessary to register \w+ shared memory region).*", r"\1"),
    _rule(r"failed to parse the request message: .*", "Unable to parse request", None, "INTERNAL"),
    _rule(r"shared memory region '[^']*': '(key|byte_size|raw_handle)' is missing",
          r"Shared memory register request has no '\1' field"),
    _rule(r"output ('[^']*'): the tensor has (\d+) bytes, shared_memory_byte_size is (\d+)",
          r"shared memory size specified with the request for output \1 (\3 bytes) should be at"
          r" least \2 bytes to hold the results", 500, "INTERNAL"),
    _rule(r"(?:in|out)put '[^']*': (Unable to find shared memory region: .*)", r"\1"),
    _rule(r"(?:in|out)put '[^']*': (Invalid offset(?: \+ byte size)? for shared memory region: "
          r"'[^']*'); .*", r"\1"),
    _rule(r"shared memory (region '[^']*'): byte_size must be .*",
          r"failed to register shared memory \1: unable to process address spaceInvalid argument"),
    _rule(r"shared memory (region '[^']*'): object '.*' has \d+ bytes, but .*",
          r"failed to register shared memory \1: invalid args"),
    _rule(r"cuda shared memory region '.*': this server takes no CUDA shared memory.*",
          "failed to register shared memory region: invalid args", 400, "INVALID_ARGUMENT"),
    _rule(r"ensemble ('[^']*'): Request for unknown model: .*",
          r"Request for unknown model: \1 has no available versions", 404, "NOT_FOUND"),
)  # fmt: skip

_WHOLE: Final = "int64_param or uint64_param"
#: The same for gRPC, before those.
GRPC_RULES: Final = (
    _rule(r"failed to get model version from specified version string ('-\d+') .*",
          r"invalid model version specified \1 , version should be an integral value > 0"),
    _rule(r"parameter '(priority)' must be .*",
          rf"invalid value type for '\1' parameter, expected {_WHOLE}."),
    _rule(r"parameter '(timeout)' must be .*",
          r"invalid value type for '\1' parameter, expected int64_param."),
    _rule(r"parameter '(sequence_id)' must be .*",
          r"invalid value type for '\1' parameter, expected int64_param or string_param."),
    _rule(r"parameter '(sequence_start|sequence_end)' must be .*",
          r"invalid value type for '\1' parameter, expected bool_param."),
    _rule(r"(invalid value type for 'classification' parameter, expected int64_param): .*", r"\1"),
    _rule(r"parameter '([^']*)' has invalid type\..*",
          r"invalid value type for '\1' parameter, expected int64_param, bool_param, or"
          r" string_param."),
    _rule(r"parameter keys starting with 'triton_' are reserved for Triton usage.*",
          "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following"
          " keys starting with 'triton_' are allowed: triton_enable_empty_final_response"),
    _rule(r"(unable to find data for input tensor .* in request\.).*", r"\1"),
    _rule(r"(unexpected explicit tensor data for .*, expected datatype '[^']*'): .*", r"\1"),
)  # fmt: skip

#: What an infer request is told as JSON; all else is text/plain there.
JSON_OF_INFER: Final = re.compile(
    r"\[request id: (?!.*\] out of bounds )|Unable to |Input must |parameter |inference request |"
    r"invalid datatype |unexpected |receiving |Invalid offset|attempt to |"
    r"failed to (?!get model version)|string correlation "
)


#: What ensembles put before the error of a member.
_OF_MEMBER: Final = re.compile("(?:in ensemble '[^']*', )+")


def in_tritons_words(
    told: ToldError, request_id: str = "", *, over_grpc: bool = False
) -> ToldError:
    """The error as Triton tells it, as far as it is known. `request_id`: the body's own."""
    if of_member := _OF_MEMBER.match(told.text):
        of_its_own = ToldError(told.status, told.code, told.text[of_member.end() :])
        status, code, text = in_tritons_words(of_its_own, request_id, over_grpc=over_grpc)
        return ToldError(status, code, of_member.group() + text)
    for rule in (*GRPC_RULES, *RULES) if over_grpc else RULES:
        found = rule.ours.fullmatch(told.text)
        if found is None:
            continue
        text = told.text if rule.text is None else found.expand(rule.text)
        if rule.with_id:
            text = f"[request id: {request_id or '<id_unknown>'}] {text}"
        return ToldError(rule.status or told.status, rule.code or told.code, text)
    return told
