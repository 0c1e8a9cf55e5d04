"""Why are a model's batches as they are? As plain values, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wherry.core.api import SECONDS_BUCKETS, Decision, LoadedModel, duration, number, rows

Json = dict[str, Any]

#: How a batch left, by the reason of its `Batch`.
LEFT = {
    "full": "full",
    "idle": "as an instance was free",
    "waited": "",
    "part": "with a part of the queue",
    "slots": "with enough steps",
    "preferred": "with a preferred size",
    "delay": "by max_queue_delay",
    "no_arrivals_expected": "as none was expected",
    "mixed": "as one could not join",
    "deadline": "as a deadline was near",
}
#: For what one batch was held, by `Decisions.held`, and for what several were.
HELD_FOR = {
    "callers": (" for {} caller{}", " for callers that send again"),
    "turn": (" for its turn", " for their turn"),
    "delay": ("", ""),
}
#: The returned share of callers by which "they" have returned.
MOST = 0.95


def batching(loaded: LoadedModel) -> Json:
    """What the batcher has learnt, what it has decided lately, and what it did in all."""
    counted = loaded.statistics
    with counted.lock:
        done = {
            "batches_cut_by_reason": dict(sorted(counted.cut_reasons.items())),
            "executions_by_batch_size": {
                str(size): batch.count for size, batch in sorted(counted.batch_sizes.items())
            },
            "requests_by_wait": [
                [seconds, count]
                for seconds, count in zip(
                    SECONDS_BUCKETS, counted.queue_seconds.counts, strict=False
                )
                if count
            ],
            "rejected_predicted_late": counted.predicted_late,
        }
    explained: Json = {
        "name": loaded.name,
        "version": loaded.version,
        "max_batch_size": loaded.config.max_batch_size,
        "queued_requests": loaded.runner.queued_requests,
        **loaded.runner.explain(),
        **done,
    }
    if residence := loaded.runner.residence():
        explained["residence"] = residence
    if "active_requests" in explained:
        explained["most_active_requests"] = loaded.runner.load().full_rows
    decisions = explained.pop("decisions", None)
    if decisions is None:  # no batches are formed
        return explained
    last = decisions.last()
    explained["in_words"] = [
        *_of_residence(residence),
        *beliefs(explained),
        *(summary(last) if last else _without_batches(explained)),
    ]
    explained["last_batches"] = [_batch(decision, decisions.now) for decision in last]
    return explained


def _of_residence(residence: Mapping[str, Any]) -> Iterator[str]:
    if not residence:
        return
    size, wakes = residence["footprint_bytes"], residence["wakes"]
    takes = "an unknown number of" if size is None else f"{size:,}"
    yield f"it takes {takes} bytes of {residence['device']}, and is {residence['state']}" + (
        f": {residence['why']}" if residence["why"] else ""
    )
    if wakes:
        yield f"it was loaded {wakes} times, in {number(residence['waking_seconds'])} s"


def beliefs(explained: Json) -> Iterator[str]:
    clauses = []
    callers, plan = explained.get("callers", {}), explained.get("plan", {})
    returned, returning = callers.get("returned_within_seconds"), callers.get("returning", 0.0)
    loop = returning if returned else 0.0
    if loop >= 0.5:
        back = next(age for age, share in returned if share >= MOST * returned[-1][1])
        clauses.append(
            f"callers of {rows(round(loop))} send again within {duration(back)} of an answer"
        )
    if plan:
        clauses.append(_planned(plan) + _gain(plan, loop, _mean(returned or [])))
    if clauses:
        why = f" ({plan['why']})" if plan.get("why") else ""
        sentence = "; ".join(clauses) + why
        yield f"{sentence[:1].upper()}{sentence[1:]}."
    if callers.get("strangers_per_second", 0.0) >= 0.1:
        rate = number(callers["strangers_per_second"])
        yield f"Open load: {rate} requests/s from clients that do not wait for each answer."
    sizes = explained.get("row_sizes", {})
    if sizes.get("similar_sizes_together"):
        seen = ": batches were seen to take as long as their longest row makes them"
        why = seen if sizes["sizes"] == "length" else ""
        yield f"Rows of similar {sizes['sizes']} share batches{why}."
    if explained.get("next_trial_rows"):
        size = rows(explained["next_trial_rows"])
        yield f"A batch of {size} will be tried soon, as its time is not known well."


def _mean(returned: Sequence[Sequence[float]]) -> float:
    """Of ages by which a share has returned, the mean age of a return."""
    before, ages = 0.0, 0.0
    for age, share in returned:
        ages += age * (share - before)
        before = share
    return ages / before if before else 0.0


def _planned(plan: Json) -> str:
    size = rows(round(plan["rows"])) if plan.get("rows") else ""
    if plan.get("wait_seconds"):
        sentence = f"a batch waits up to {duration(plan['wait_seconds'])} for {size or 'more rows'}"
    else:
        sentence = "a free instance takes what is queued" + (size and f", about {size}")
    if plan.get("apart_seconds"):
        sentence += f", batches start {duration(plan['apart_seconds'])} apart"
    return sentence


def _gain(plan: Json, loop: float, back: float) -> str:
    """What the plan brings, against running whatever is queued at once, to `loop` rows of callers
    that send again `back` seconds after an answer."""
    if "answer_seconds" not in plan:
        return ""
    planned, at_once = plan["answer_seconds"], plan.get("answer_seconds_at_once")
    answers = f"answers in {duration(planned)}"
    if at_once is None or duration(at_once) == duration(planned):
        return f": {answers}"
    answers += f" instead of {duration(at_once)}"
    if loop < 0.5:
        return f": {answers}"
    # A caller in a loop sends one request in the time of an answer and of its return.
    rate, rate_at_once = (number(loop / (answer + back)) for answer in (planned, at_once))
    return f": {rate} rows/s instead of {rate_at_once}, {answers}"


def _without_batches(explained: Json) -> Iterator[str]:
    if explained["executions_by_batch_size"]:
        yield "Rows ran at once, in the threads of their callers: no batch was decided about."
    else:
        yield "Nothing has run yet."


def summary(last: Sequence[Decision]) -> Iterator[str]:
    """What was decided for the last batches, at least one, and the time that they took."""
    kinds: dict[tuple[str, str], list[Decision]] = {}
    for decision in last:
        kinds.setdefault((decision.reason, decision.held_for), []).append(decision)
    many = sorted(kinds.values(), key=lambda kind: -len(kind))
    counts = "; ".join([f"{len(kind)} left {_left(kind)}" for kind in many])
    total = sum([decision.rows for decision in last])
    rate, apart = "", last[-1].left_at - last[0].left_at
    if apart > 0:
        rate = f", {number((total - last[-1].rows) / apart)} rows/s"
    batches = f"The last {len(last)} batches" if len(last) > 1 else "The last batch"
    yield f"{batches} ({rows(total / len(last))} on average{rate}): {counts}."
    compared = [
        (decision.seconds, decision.expected_seconds)
        for decision in last
        if decision.seconds is not None and decision.expected_seconds
    ]
    if compared:
        took = sum([seconds for seconds, _ in compared])
        off = 100 * (took / sum([expected for _, expected in compared]) - 1)
        than = f"{abs(off):.0f} % {'more' if off > 0 else 'less'} than" if abs(off) >= 1 else "as"
        yield f"They took {duration(took / len(compared))} on average, {than} predicted."


def _left(alike: Sequence[Decision]) -> str:
    first = alike[0]
    how = LEFT.get(first.reason, first.reason)
    held = sum([decision.held_seconds for decision in alike]) / len(alike)
    if not first.held_for or held <= 0:
        return how or "after a wait"
    one, several = HELD_FOR.get(first.held_for, (" for " + first.held_for,) * 2)
    if len(alike) == 1:
        purpose = one.format(first.held_count, "s" if first.held_count != 1 else "")
    else:
        purpose = " on average" + several
    return f"{how or 'after'}{how and ', held'} {duration(held)}{purpose}"


def _batch(decision: Decision, now: float) -> Json:
    return {
        "left_seconds_ago": now - decision.left_at,
        "rows": decision.rows,
        "rows_left_queued": decision.rows_left,
        "longest_wait_seconds": decision.left_at - decision.oldest_at,
        "reason": decision.reason,
        "held_seconds": decision.held_seconds,
        "held_for": decision.held_for,
        "held_count": decision.held_count,
        "why": _left([decision]),
        "instance": decision.instance,
        "runs": decision.runs,
        "seconds": decision.seconds,
        "expected_seconds": decision.expected_seconds,
    }
