"""What do a model's scheduling settings make of a request, from config to wire?"""

from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import Gate, ManualClock, gated
from tests.http_exchange import served
from tests.sequence_models import Adder
from wherry import ConfigError, InvalidRequest, QueuePolicy, QueueTimeout, Runtime
from wherry.core.models.config import ModelConfig, model_config
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest


def config(**settings: Any) -> ModelConfig:
    return model_config("m", settings)


# Settings


def test_sequences_and_policies_may_be_objects_or_tables() -> None:
    table = {
        "strategy": "oldest",
        "max_sequence_idle": 5,
        "controls": ["start", {"kind": "id", "input": "who"}],
        "states": [{"input": "old", "output": "new", "shape": [2]}],
    }
    assert config(sequence=table).sequence == wherry.SequenceBatching(
        strategy="oldest",
        max_sequence_idle=5.0,
        controls=(wherry.SequenceControl("start"), wherry.SequenceControl("id", "who")),
        states=(wherry.SequenceState("old", "new", shape=(2,)),),
    )
    policies = [{"level": 2, "timeout": 1}, QueuePolicy(max_queue_size=3)]
    assert config(queue_policies=policies).queue_policies == (
        QueuePolicy(level=2, timeout=1.0),
        QueuePolicy(max_queue_size=3),
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sequence": {"strategie": "oldest"}}, "sequence: unknown setting 'strategie'; did you"),
        ({"sequence": {"strategy": "newest"}}, "expected 'direct' or 'oldest'"),
        ({"sequence": {"max_sequence_idle": 0}}, "max_sequence_idle must be more than 0"),
        ({"sequence": {"minimum_slot_utilization": 1.5}}, "between 0 and 1"),
        ({"sequence": {"max_candidate_sequences": -1}}, "must not be negative"),
        ({"sequence": {"controls": ["begin"]}}, "control 'begin': expected one of start"),
        ({"sequence": {"controls": [{"kynd": "start"}]}}, r"'m': sequence.controls\[0\]: object"),
        ({"sequence": 7}, "sequence"),
        ({"queue_policies": [{"timout": 1}]}, "queue_policies: unknown setting 'timout'; did you"),
        ({"queue_policies": [QueuePolicy(), {"timeout": 0}]}, "timeout must be more than 0"),
        ({"queue_policies": [{"timeout_action": "wait"}]}, "expected 'reject' or 'delay'"),
        ({"queue_policies": [{"max_queue_size": 0}]}, "max_queue_size must be at least 1"),
        ({"queue_policies": [{"level": -1}]}, "level must not be negative"),
        ({"queue_policies": 3}, "queue_policies"),
        ({"default_priority": 11}, "between 1 and priority_levels"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(**settings)


def test_the_policy_of_a_level_is_its_own_or_that_of_all() -> None:
    own, all_others = QueuePolicy(level=2), QueuePolicy()
    assert config(queue_policies=[own]).queue_policy(1) is None
    both = config(queue_policies=[own, all_others])
    assert (both.queue_policy(1), both.queue_policy(2)) == (all_others, own)


# A request


def request(timeout: float | None = None, priority: int = 0, **settings: Any) -> InferRequest:
    gate = Gate()
    with Runtime(gated(gate, **settings), clock=ManualClock(100.0)) as runtime:
        return runtime.model("gated").request(
            {"text": ["a"]}, 1, Reply(lambda _: None), timeout=timeout, priority=priority
        )


def test_without_levels_nobody_takes_notice_of_a_priority() -> None:
    assert request(priority=99, priority_levels=0).priority == request(priority_levels=0).priority
    with pytest.raises(InvalidRequest, match="priority 99 is not between"):
        request(priority=99)


@pytest.mark.parametrize(
    ("policy", "timeout", "wait_until", "deadline"),
    [
        (QueuePolicy(timeout=2.0), None, 102.0, None),
        (QueuePolicy(timeout=2.0), 1.0, 102.0, 101.0),
        (QueuePolicy(timeout=2.0, allow_timeout_override=False), 1.0, 102.0, None),
        (QueuePolicy(), 1.0, None, 101.0),
        (QueuePolicy(level=9, timeout=2.0), 1.0, None, 101.0),
        (QueuePolicy(timeout=2.0, triton=True), None, 102.0, None),
        (QueuePolicy(timeout=2.0, triton=True), 1.0, 101.0, None),
        (QueuePolicy(timeout=2.0, triton=True), 3.0, 102.0, None),
        (QueuePolicy(timeout=2.0, triton=True), 0.0, 102.0, None),
        (QueuePolicy(triton=True), 1.0, None, None),
        (QueuePolicy(timeout=2.0, triton=True, allow_timeout_override=False), 1.0, 102.0, None),
    ],
)
def test_a_policy_says_how_long_a_request_may_wait_and_what_its_own_timeout_is(
    policy: QueuePolicy, timeout: float | None, wait_until: float | None, deadline: float | None
) -> None:
    made = request(timeout, queue_policies=(policy,))
    assert (made.wait_until, made.deadline) == (wait_until, deadline)


def test_a_wait_ends_in_time_although_the_only_instance_is_busy() -> None:
    gate = Gate()
    model = gated(gate, max_batch_size=1, queue_policies=(QueuePolicy(timeout=0.02),))
    with Runtime(model) as runtime:
        running = runtime.model("gated").request({"text": ["a"]}, 1, Reply(lambda _: None))
        running.wait_until = None
        runtime.model("gated").submit([running])
        gate.started()
        with pytest.raises(QueueTimeout):
            runtime.infer("gated", "b")
        gate.open()


def test_every_part_of_a_large_request_has_the_same_patience() -> None:
    gate = Gate()
    model = gated(gate, max_batch_size=1, queue_policies=(QueuePolicy(timeout=0.02),))
    with Runtime(model) as runtime:
        with pytest.raises(QueueTimeout):
            runtime.infer_batch("gated", text=["a", "b", "c"])
        gate.open(1)


# Over HTTP


def test_steps_come_as_parameters_and_mistakes_are_400_in_tritons_words() -> None:
    def ask(client: Any, x: int, **parameters: Any) -> Any:
        body = {
            "parameters": parameters,
            "inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [x]}],
        }
        return client.post("/v2/models/adder/infer", body)

    with served(Adder()) as client:
        assert ask(client, 1, sequence_id=7, sequence_start=True).status == 200
        assert ask(client, 2, sequence_id="seven", sequence_start=True).status == 200
        last = ask(client, 3, sequence_id=7, sequence_end=True)
        assert last.json["outputs"][0]["data"] == [4]
        unknown = ask(client, 3, sequence_id=7)
        assert unknown.status == 400
        assert "must specify the START flag on the first request" in unknown.json["error"]
        without = ask(client, 3)
        assert without.status == 400
        assert "must specify a non-zero or non-empty correlation ID" in without.json["error"]
        described = client.ask("GET", "/v2/models/adder").json
        assert [tensor["name"] for tensor in described["inputs"]] == ["x"]


def test_the_answer_of_a_model_with_a_state_does_not_hold_it() -> None:
    from tests.sequence_models import Stateless

    with Runtime(Stateless()) as runtime:
        loaded = runtime.model("stateless")
        told: list[Any] = []
        made = loaded.request(
            {"x": np.ones((1, 2), np.float32)},
            1,
            Reply(lambda reply: told.append(reply)),
            sequence=wherry.SequenceStep(1, start=True, end=True),
        )
        loaded.submit([made])
        loaded.runner.drain(10.0)
        assert list(told[0].result().outputs) == ["total"]


def test_clients_can_see_from_the_configuration_that_a_model_takes_sequences() -> None:
    with served(Adder()) as client:
        told = client.get("/v2/models/adder/config").json
        assert "dynamic_batching" not in told
        assert told["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.0
        assert [one["name"] for one in told["input"]] == ["x"]
