"""frontends/v2/http/triton_head.py: heads as a tritonserver 2.51 read them."""

from __future__ import annotations

import pytest

from wherry.frontends.http.exchange import RequestHead
from wherry.frontends.v2.http.triton_head import accepted_coding, head_as_triton_reads_it


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("gzip", "gzip"), ("deflate, gzip", "deflate"), ("gzip, deflate", "gzip"),
        ("gzip;q=0.5,deflate;q=0.8", "deflate"), ("gzip;q=0", "identity"),
        ("identity,gzip", "identity"),
        ("gzip;q=1.5,deflate;q=2", "deflate"), ("gzip; q=0.5", "identity"), ("gzip;", "identity"),
        ("gzip;q=x", "identity"), ("gzip;q=.5x", "gzip"), ("GZIP", "identity"), ("*", "identity"),
        ("", "identity"), (";q=1", "identity"), ("br;q=1,gzip;q=1e-3", "gzip"),
    ],
)  # fmt: skip
def test_the_first_coding_of_the_largest_weight_is_accepted(header: str, coding: str) -> None:
    assert accepted_coding(header) == coding


def head(path: str, **headers: str) -> RequestHead:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestHead(method="POST", path=path, headers=named, sent_path=path)


@pytest.mark.parametrize(
    ("path", "coding", "read"),
    [
        ("/v2/models/m/infer", "gzip", "gzip"),
        ("/v2/models/m/versions/1/infer", "x", "unknown"),
        ("/v2/models/m/infer", "", "unknown"),
        ("/v2/models/m/generate_stream", "GZIP", "unknown"),
        ("/v2/repository/index", "gzip", None),
        ("/v2/logging", "x", None),
        ("/v1/chat/completions", "gzip", "gzip"),
    ],
)
def test_a_coding_counts_where_a_model_is_asked(path: str, coding: str, read: str | None) -> None:
    made = head_as_triton_reads_it(head(path, content_encoding=coding))
    assert made.headers.get("content-encoding") == read


def test_a_head_that_both_read_alike_stays_the_same_object() -> None:
    given = head("/v2/models/m/infer", accept_encoding="gzip, deflate", content_encoding="gzip")
    assert head_as_triton_reads_it(given) is given
