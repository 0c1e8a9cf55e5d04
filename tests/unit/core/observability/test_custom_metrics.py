"""Do a model's own metrics add up, and are they shown as Prometheus wants them?"""

from wherry.core.observability.custom_metrics import CustomMetrics, Kind, merged
from wherry.core.observability.families import custom_metric


def store(*values: float) -> CustomMetrics:
    metrics = CustomMetrics()
    for value in values:
        metrics.measure("seen", "Seen.", Kind.COUNTER, (("a", "b"),), None, "add", value)
        metrics.measure("last", "Last.", Kind.GAUGE, (), None, "set", value)
        metrics.measure("all", "All.", Kind.HISTOGRAM, (), [1.0, 10.0], "observe", value)
    return metrics


def test_counters_add_gauges_keep_the_last_and_histograms_count() -> None:
    metrics = store(0.5, 1.0, 5.0, 50.0)
    seen, last, every = metrics.families()

    assert metrics.value("seen", (("a", "b"),)) == 56.5
    assert metrics.value("nothing", ()) == 0.0
    assert [line.value for line in seen.lines.values()] == [56.5]
    assert [line.value for line in last.lines.values()] == [50.0]
    (line,) = every.lines.values()
    assert (line.counts, line.value) == ([2, 1, 1], 56.5)


def test_families_of_several_models_are_one() -> None:
    other = CustomMetrics()
    other.measure("seen", "Seen.", Kind.COUNTER, (("a", "c"),), None, "add", 1.0)
    other.measure("all", "All.", Kind.GAUGE, (), None, "set", 1.0)  # another kind: left out
    families = {family.name: family for family in merged([store(2.0), store(3.0), other])}

    assert {labels: line.value for labels, line in families["seen"].lines.items()} == {
        (("a", "b"),): 5.0,
        (("a", "c"),): 1.0,
    }
    (line,) = families["all"].lines.values()
    assert line.counts == [0, 2, 0]


def test_names_of_the_servers_own_are_left_out() -> None:
    metrics = CustomMetrics()
    metrics.measure("nv_inference_count", "Mine.", Kind.COUNTER, (), None, "add", 1.0)
    metrics.measure("wherry_model_ready", "Mine.", Kind.GAUGE, (), None, "set", 1.0)

    assert merged([metrics]) == []


def test_a_histogram_is_shown_with_cumulative_buckets() -> None:
    family = {one.name: one for one in merged([store(0.5, 5.0, 50.0)])}["all"]
    samples = custom_metric(family).samples

    assert [(s.name, s.labels.get("le"), s.value) for s in samples] == [
        ("all_bucket", "1", 1),
        ("all_bucket", "10", 2),
        ("all_bucket", "+Inf", 3),
        ("all_count", None, 3),
        ("all_sum", None, 55.5),
    ]


def test_a_counter_keeps_its_name() -> None:
    metrics = CustomMetrics()
    for name in ("requests_total", "requests"):
        metrics.measure(name, "d", Kind.COUNTER, (), None, "add", 1.0)

    assert [s.name for f in merged([metrics]) for s in custom_metric(f).samples] == [
        "requests_total",
        "requests",
    ]
