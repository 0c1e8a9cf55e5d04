from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from wherry.core.instances import worker_protocol
from wherry.core.instances.source import Module, Source, sent
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.values.datatypes import BYTES, FP32, Form, TensorSpec
from wherry.core.values.execution import Failure, SharedOutcome
from wherry.core.workers.encoding import Garbage, MessageDecoder

SOURCE = Source(Module("shop", b"/app/shop.py"), "Checkout", b"pickled", Module("cli", None))

TO_WORKER = [
    worker_protocol.Start(
        SOURCE,
        ModelConfig(
            name="m", max_batch_size=4, warmup=({"text": "a"},), preferred_batch_sizes=(2, 4)
        ),
        Device("cuda", 1),
        {"": 20, "shop": 10},
        [sent("/app\udcff")],
        [b"prog", b"-v"],
        None,
    ),
    worker_protocol.Execute({"text": ["a", "b"]}, [1, 1], True),
    worker_protocol.Generate({"text": ["a"]}, [1]),
    worker_protocol.Cancel(3),
    worker_protocol.Stop(),
]
FROM_WORKER = [
    worker_protocol.Ready(),
    worker_protocol.NotLoaded("ValueError", "no", "Traceback"),
    worker_protocol.Result({"out": ["a", "b"]}, 1234, 567),
    worker_protocol.PartResults(
        [
            SharedOutcome({"out": ["a", "b", "c"]}, [1, 2]),
            SharedOutcome(Failure("ModelFailed", "no"), [1]),
        ],
        1234,
        567,
        [4, 2, 2],
    ),
    worker_protocol.Respond(1, {"out": ["a"]}),
    worker_protocol.GenerateEnd([None, Failure("ModelFailed", "no", "Traceback")]),
]


@pytest.mark.parametrize(
    ("message", "receives"),
    [(m, worker_protocol.ToWorker) for m in TO_WORKER]
    + [(m, worker_protocol.FromWorker) for m in FROM_WORKER],
    ids=lambda value: type(value).__name__,
)
def test_a_message_arrives_as_it_was_sent(message: Any, receives: Any) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=receives) == message


def test_a_worker_cannot_send_what_only_its_parent_may() -> None:
    stop = msgspec.msgpack.encode(worker_protocol.Stop())

    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(stop, type=worker_protocol.FromWorker)


def test_a_failure_crosses_without_its_exception() -> None:
    failure = Failure("InvalidRequest", "too old", "Traceback", ValueError(np.zeros(3)))

    sent = msgspec.msgpack.encode(failure.without_exception())
    arrived = msgspec.msgpack.decode(sent, type=Failure).as_exception()

    assert type(arrived).__name__ == "InvalidRequest"
    assert str(arrived) == "too old"
    assert arrived.__notes__ == ["Traceback"]


FAILED = Failure("ModelFailed", "no")
RESULT = worker_protocol.Result({"out": ["a", "b", "c"]}, 1000, 50)
PART_RESULTS = worker_protocol.PartResults(
    [SharedOutcome({"out": ["a", "b", "c"]}, [1, 2]), SharedOutcome(FAILED, [1, 1])],
    1000,
    50,
    [5, 3, 2],
    5,
)


def test_a_result_gives_each_request_its_rows() -> None:
    assert RESULT.execution([3], 900).outcomes == [{"out": ["a", "b", "c"]}]
    execution = RESULT.execution([1, 2], 900)

    assert execution.outcomes == [{"out": ["a"]}, {"out": ["b", "c"]}]
    assert (execution.input_ns, execution.infer_ns, execution.executed_rows) == (100, 50, [3])


def test_results_in_parts_give_each_request_its_rows_or_why_it_failed() -> None:
    execution = PART_RESULTS.execution([1, 2, 1, 1], 900)

    assert execution.outcomes == [{"out": ["a"]}, {"out": ["b", "c"]}, FAILED, FAILED]
    assert (execution.executed_rows, execution.out_of_memory_rows) == ([5, 3, 2], 5)


@pytest.mark.parametrize("result", [RESULT, PART_RESULTS], ids=["Result", "PartResults"])
def test_a_result_for_another_batch_is_garbage(
    result: worker_protocol.Result | worker_protocol.PartResults,
) -> None:
    with pytest.raises(Garbage):
        result.execution([1, 1], 900)


def test_only_columns_of_strings_hold_no_arrays() -> None:
    text, array = (
        TensorSpec(name, datatype, (), form)
        for name, datatype, form in [("t", BYTES, Form.TEXT), ("x", FP32, Form.ARRAY)]
    )

    assert not worker_protocol.may_hold_arrays([text, text])
    assert worker_protocol.may_hold_arrays([text, array])


def test_only_the_request_whose_rows_cannot_be_decoded_fails_of_a_step() -> None:
    @dataclass(frozen=True)
    class Key:
        a: int = 1

    def share(key: int, *rows: Any) -> worker_protocol.Share:
        return worker_protocol.Share(key, [{"out": [row]} for row in rows], False, None)

    step = worker_protocol.Stepped(
        [share(1, {"a": 1}), share(2, {"a": 1}, {Key(): 1})], 2, 5, {"g": 1.0}
    )
    decoder = MessageDecoder(
        worker_protocol.FromWorker, copies=True, salvage=partial(worker_protocol.salvaged, "m")
    )
    found = decoder.decode(memoryview(msgspec.msgpack.encode(step)))
    assert isinstance(found, worker_protocol.Stepped)
    assert found.shares[0] == step.shares[0]
    bad = found.shares[1].failure
    assert bad is not None
    assert found.shares[1].responses == []
    assert "model 'm' returned what cannot be sent: output 'out'" in bad.message
    assert (found.active_requests, found.step_ns, found.gauges) == (2, 5, {"g": 1.0})
