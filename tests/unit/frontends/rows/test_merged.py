"""Are the figures of several owners told as those of one pool?"""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from wherry.frontends.rows.merged import merged_metrics, merged_statistics, pool_metrics
from wherry.remote.members import ReplicaStatus


def stats(name: str, count: int, last: int, sizes: dict[int, int]) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1",
        "last_inference": last,
        "inference_stats": {"success": {"count": count, "ns": 10 * count}},
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": n, "ns": n}}
            for size, n in sizes.items()
        ],
    }


def test_counts_are_summed_model_by_model_and_size_by_size() -> None:
    one = {"model_stats": [stats("a", 3, 100, {1: 1, 2: 1})]}
    other = {"model_stats": [stats("b", 7, 50, {}), stats("a", 4, 90, {2: 5, 8: 1})]}
    merged = json.loads(merged_statistics([json.dumps(one).encode(), json.dumps(other).encode()]))
    assert merged == {
        "model_stats": [stats("a", 7, 100, {1: 1, 2: 6, 8: 1}), stats("b", 7, 50, {})]
    }


def test_one_owner_is_told_as_it_is() -> None:
    one = {"model_stats": [stats("a", 3, 100, {1: 1})]}
    assert json.loads(merged_statistics([json.dumps(one).encode()])) == one


METRICS = """\
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{model="a}b"} 3.0
# HELP up Up.
# TYPE up gauge
up 1.0
"""


def test_each_sample_says_of_which_replica_it_is_and_families_stay_together() -> None:
    merged = merged_metrics({"x:1": METRICS, 'y"2': METRICS}, openmetrics=False)
    families = {one.name: one for one in text_string_to_metric_families(merged)}
    assert merged.count("# TYPE requests_total counter") == 1
    assert [sample.labels for sample in families["requests"].samples] == [
        {"replica": "x:1", "model": "a}b"},
        {"replica": 'y"2', "model": "a}b"},
    ]
    assert [sample.labels for sample in families["up"].samples] == [
        {"replica": "x:1"},
        {"replica": 'y"2'},
    ]


def test_openmetrics_end_once_and_exemplars_keep_their_labels() -> None:
    text = '# TYPE t histogram\nt_bucket{le="1.0"} 1.0 # {trace_id="x"} 0.5\nt_sum 1.0\n# EOF\n'
    merged = merged_metrics({"a:1": text, "b:1": text}, openmetrics=True)
    assert merged.splitlines() == [
        "# TYPE t histogram",
        't_bucket{replica="a:1",le="1.0"} 1.0 # {trace_id="x"} 0.5',
        't_sum{replica="a:1"} 1.0',
        't_bucket{replica="b:1",le="1.0"} 1.0 # {trace_id="x"} 0.5',
        't_sum{replica="b:1"} 1.0',
        "# EOF",
    ]


def test_the_pool_is_told_with_its_waits() -> None:
    replicas = [
        ReplicaStatus("a:1", "ready", "host:1", "1.0", "cuda:0"),
        ReplicaStatus("b:1", "connecting", error="refused"),
    ]
    waits = {"m": [{"replica": "a:1", "wait_seconds": 0.25, "rows": 3}]}
    told = {
        (sample.name, sample.labels.get("replica")): sample.value
        for family in text_string_to_metric_families(pool_metrics(replicas, waits))
        for sample in family.samples
    }
    assert told == {
        ("wherry_replicas", None): 1,
        ("wherry_replica_up", "a:1"): 1,
        ("wherry_replica_up", "b:1"): 0,
        ("wherry_replica_info", "a:1"): 1,
        ("wherry_replica_info", "b:1"): 1,
        ("wherry_replica_wait_seconds", "a:1"): 0.25,
        ("wherry_replica_rows", "a:1"): 3,
    }
