"""Which trace does something belong to, as the W3C's headers say it?"""

import pytest

from tests.costs import assert_linear
from wherry.core.observability.otel.context import TraceContext, context_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"


def test_a_context_goes_on_as_it_came() -> None:
    headers = {"traceparent": GIVEN, "tracestate": "a=1, b@c=x/y", "baggage": "user=7;p=1"}
    context = context_of(headers)
    assert context is not None
    assert (f"{context.trace_id:x}", f"{context.span_id:x}") == (TRACE.lstrip("0"), SPAN)
    assert context.is_sampled
    assert context.headers() == headers


def test_a_parent_that_is_not_sampled_says_so_to_the_next_process() -> None:
    context = context_of({"traceparent": GIVEN[:-2] + "00"})
    assert context is not None
    assert not context.is_sampled
    assert context.headers() == {"traceparent": GIVEN[:-2] + "00"}


def test_a_later_version_may_say_more_and_of_its_flags_only_the_known_one_goes_on() -> None:
    context = context_of({"traceparent": f"cc-{TRACE}-{SPAN}-ff-what-the-future-brings"})
    assert context is not None
    assert context.headers() == {"traceparent": GIVEN}


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00",
        GIVEN.upper(),
        GIVEN + "-more",
        GIVEN + "\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"{GIVEN}, {GIVEN}",
        f"0\N{ARABIC-INDIC DIGIT ZERO}-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 5000,
    ],
)
def test_what_is_no_traceparent_is_no_context(given: str) -> None:
    assert context_of({"traceparent": given, "tracestate": "a=1"}) is None


@pytest.mark.parametrize(
    "state",
    [
        "a",
        "A=1",
        "=1",
        "a=1,a=2",
        "a=1,b",
        "a=\x01",
        "a=b=c",
        "a=" + "x" * 257,
        ",".join(f"k{n}=1" for n in range(33)),
        ",".join(f"k{n}=1" for n in range(600)),
        "a=" + "x" * 100_000,
    ],
)
def test_a_wrong_tracestate_is_dropped_as_a_whole_and_the_trace_goes_on(state: str) -> None:
    assert context_of({"traceparent": GIVEN, "tracestate": state}) == context_of(
        {"traceparent": GIVEN}
    )


@pytest.mark.parametrize("baggage", ["a=\x00", "k=\N{SNOWMAN}", "k=" + "x" * 8192])
def test_baggage_that_may_not_be_passed_on_is_dropped(baggage: str) -> None:
    context = context_of({"traceparent": GIVEN, "baggage": baggage})
    assert context is not None
    assert context.baggage == ""


def test_another_span_of_a_trace_has_all_but_the_span_in_common() -> None:
    context = TraceContext(1, 2, 1, "a=1", "b=2")
    assert context.of_span(3) == TraceContext(1, 3, 1, "a=1", "b=2")


@pytest.mark.parametrize("name", ["traceparent", "tracestate", "baggage"])
@pytest.mark.parametrize("piece", ["a=1,", "0", "-", " ", "a=" + "x" * 200 + ","])
def test_long_headers_cost_no_more_than_their_length(name: str, piece: str) -> None:
    assert_linear(context_of, lambda size: {"traceparent": GIVEN, name: piece * size})
