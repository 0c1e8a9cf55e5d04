"""Which replica of a model gets a row?"""

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.remote.choice import FORGOTTEN, SILENT, Replica, ReplicaChoice, hash_of
from wherry.values.load import Load

#: 1 s and 1 s a row, up to 8 rows; idle.
IDLE = Load(ready=True, instances=1, full_rows=8, one_seconds=2.0, full_seconds=9.0)


def busy(rest: float = 1.0, queued: int = 0, running: int = 8) -> Load:
    """It runs a batch that has so many seconds to go."""
    return msgspec.structs.replace(
        IDLE, busy=1, free_after=rest, queued_rows=queued, running_rows=running
    )


def pool(*loads: Load, seed: int = 1) -> tuple[ReplicaChoice, list[Replica]]:
    """Replicas that have reported these loads at 0.0, none of it from this front."""
    choice = ReplicaChoice(Random(seed))
    replicas = [choice.added(f"replica{n}") for n in range(len(loads))]
    for replica, load in zip(replicas, loads, strict=True):
        choice.reported(replica, load, 0, 0.0)
    return choice, replicas


def chosen(choice: ReplicaChoice, now: float = 0.0, times: int = 50) -> Counter[str]:
    """How often each is chosen if nothing is sent."""
    names = [one.name for _ in range(times) if (one := choice.choose(1, now)) is not None]
    return Counter(names)


@pytest.mark.parametrize(
    ("load", "later", "seconds"),
    [
        (IDLE, 0.0, 2.0),
        (busy(1.0), 0.0, 1.0 + 2.0),
        (busy(1.0), 0.5, 0.5 + 2.0),  # it has gone on meanwhile
        (busy(1.0), 5.0, 2.0),
        (busy(1.0, queued=3), 0.0, 1.0 + 5.0),
        (busy(1.0, queued=11), 0.0, 1.0 + 9.0 + 5.0),
        (busy(1.0, queued=11), 2.0, 8.0 + 5.0),  # eight of them run
    ],
)
def test_an_answer_is_predicted_from_the_report_and_the_time_since(
    load: Load, later: float, seconds: float
) -> None:
    _, (replica,) = pool(load)
    assert replica.answer_seconds(1, later) == pytest.approx(seconds, abs=1e-4)


def test_a_row_that_is_sent_shortly_before_a_batch_begins_comes_too_late_for_it() -> None:
    choice = ReplicaChoice(Random(1))
    far = choice.added("far", round_trip=0.2)
    choice.reported(far, busy(1.0, queued=8), 0, 0.0)
    assert far.answer_seconds(1, 0.7) == pytest.approx(0.1 + 9.0 + 2.0)
    assert far.answer_seconds(1, 0.9) == pytest.approx(8.9 + 2.0, abs=1e-4)


def test_own_rows_count_at_once() -> None:
    choice, (replica,) = pool(IDLE)
    choice.sent(replica, 1, 0.0)
    assert replica.answer_seconds(1, 0.0) == 2.0 + 2.0
    choice.sent(replica, 3, 0.0)
    assert replica.answer_seconds(1, 0.5) == 1.5 + 5.0


def test_own_rows_that_a_report_does_not_count_yet_are_not_forgotten() -> None:
    choice, (replica,) = pool(IDLE)
    choice.sent(replica, 5, 0.0)
    choice.reported(replica, IDLE, 0, 0.1)  # it was made before they arrived
    assert (replica.own, replica.others) == (5, 0)
    assert replica.answer_seconds(1, 0.1) == 6.0 + 2.0


def test_own_rows_that_a_report_counts_are_not_counted_twice() -> None:
    choice, (replica,) = pool(IDLE)
    choice.sent(replica, 5, 0.0)
    choice.reported(replica, busy(5.9, queued=0, running=5), 5, 0.1)
    assert (replica.own, replica.others) == (5, 0)
    assert replica.answer_seconds(1, 0.1) == pytest.approx(5.9 + 2.0)


def test_rows_of_others_come_from_the_report() -> None:
    choice, (replica,) = pool(IDLE)
    choice.sent(replica, 2, 0.0)
    choice.reported(replica, busy(1.0, queued=6, running=8), 2, 0.1)
    assert (replica.own, replica.others) == (2, 12)


def test_what_is_sent_where_others_send_as_much_is_expected_from_them_too() -> None:
    choice, (replica, _) = pool(IDLE, IDLE)
    for _ in range(500):
        choice.sent(replica, 2, 0.0)
        choice.reported(replica, busy(9.0, queued=0, running=8), 2, 0.0)
        choice.ended(replica, 2)
    choice.reported(replica, busy(9.0, queued=0, running=8), 0, 0.0)
    before = replica.queued
    choice.sent(replica, 1, 0.0)
    assert replica.queued - before == pytest.approx(4.0, rel=0.05)  # a quarter is of this front


def test_the_better_of_two_is_chosen() -> None:
    choice, _ = pool(busy(5.0), busy(1.0))
    assert chosen(choice) == {"replica1": 50}
    assert chosen(choice, now=100.0).keys() == {"replica0", "replica1"}  # both are idle now


def test_a_replica_that_is_faster_gets_more() -> None:
    quick = msgspec.structs.replace(IDLE, one_seconds=0.5, full_seconds=2.25)
    choice, (slow, fast) = pool(IDLE, quick)
    for _ in range(30):
        replica = choice.choose(1, 0.0)
        assert replica is not None
        choice.sent(replica, 1, 0.0)
    assert fast.own > 2 * slow.own


def test_while_no_times_are_known_the_rows_decide() -> None:
    unknown = Load(ready=True, instances=1, full_rows=8)
    choice, (first, second) = pool(unknown, unknown)
    assert len(chosen(choice)) == 2
    choice.sent(first, 1, 0.0)
    choice.reported(first, unknown, 0, 0.0)
    assert chosen(choice) == {second.name: 50}


def test_a_new_replica_is_assumed_to_be_as_fast_as_the_others() -> None:
    choice, _ = pool(IDLE)
    new = choice.added("new")
    choice.reported(new, Load(ready=True, instances=1, full_rows=4), 0, 0.0)
    assert (new.load.one_seconds, new.load.full_seconds) == (2.0, 5.0)


def test_one_that_is_overdue_is_expected_to_take_as_long_again() -> None:
    choice, (replica,) = pool(IDLE)
    choice.sent(replica, 1, 0.0)
    seconds = [replica.answer_seconds(1, now) for now in (0.5, 2.0, 3.0, 7.0)]
    assert seconds == [1.5 + 2.0, 2.0, 1.0 + 2.0, 5.0 + 2.0]


def test_a_replica_gets_nothing_before_its_first_report() -> None:
    choice = ReplicaChoice(Random(1))
    replica = choice.added("new")
    assert choice.choose(1, 0.0) is None
    choice.reported(replica, msgspec.structs.replace(IDLE, ready=False), 0, 0.0)
    assert choice.choose(1, 0.0) is None
    choice.reported(replica, IDLE, 0, 0.0)
    assert choice.choose(1, 0.0) is replica
    choice.reported(replica, msgspec.structs.replace(IDLE, ready=False), 0, 0.0)
    assert choice.choose(1, 0.0) is None


def test_a_silent_replica_gets_nothing_until_it_is_heard_of() -> None:
    choice, (silent, _) = pool(IDLE, IDLE)
    choice.sent(silent, 1, 0.0)
    now = SILENT + 0.001
    assert chosen(choice, now) == {"replica1": 50}
    choice.ended(silent, 1)  # the caller has left: that is no sign of life
    assert chosen(choice, now + 100.0) == {"replica1": 50}
    choice.heard(silent, now + 100.0)
    assert len(chosen(choice, now + 200.0)) == 2


def test_a_replica_without_rows_of_this_front_is_not_silent() -> None:
    choice, _ = pool(IDLE, IDLE)
    assert len(chosen(choice, 1e6)) == 2


def test_if_all_are_silent_they_get_rows() -> None:
    choice, replicas = pool(IDLE, IDLE)
    for replica in replicas:
        choice.sent(replica, 1, 0.0)
    assert len(chosen(choice, 10.0)) == 2
    choice.heard(replicas[1], 10.0)
    assert chosen(choice, 10.1) == {"replica1": 50}


def test_a_draining_replica_gets_only_its_sequences() -> None:
    choice, (draining, other) = pool(IDLE, IDLE)
    begun = [n for n in range(100) if choice.choose_for_sequence(n, 0.0, starts=True) is draining]
    assert 20 < len(begun) < 80
    choice.drains(draining)
    choice.reported(draining, IDLE, 0, 0.0)
    assert chosen(choice) == {other.name: 50}
    for sequence in range(100, 200):
        assert choice.choose_for_sequence(sequence, 0.0, starts=True) is other
    for sequence in begun:
        assert choice.choose_for_sequence(sequence, 0.0, starts=False) is draining


def test_a_replica_in_place_of_one_of_the_same_name_starts_anew() -> None:
    choice, (before,) = pool(IDLE)
    choice.sent(before, 7, 0.0)
    after = choice.added(before.name)
    choice.reported(after, IDLE, 0, 1.0)
    choice.ended(before, 7)
    choice.removed(before)
    assert choice.choose(1, 1.0) is after
    assert (after.own, choice.replicas) == (0, (after,))


def test_fronts_with_the_same_replicas_agree_on_sequences() -> None:
    (one, _), (other, _) = pool(*[IDLE] * 5, seed=1), pool(*[IDLE] * 5, seed=2)
    for sequence in ("a", "b", 17, 2**63):
        first = one.choose_for_sequence(sequence, 0.0, starts=True)
        second = other.choose_for_sequence(sequence, 0.0, starts=False)
        assert first is not None
        assert second is not None
        assert first.name == second.name


def test_when_a_replica_comes_only_its_share_of_the_sequences_moves() -> None:
    choice, replicas = pool(*[IDLE] * 4)
    before = [choice.choose_for_sequence(n, 0.0, starts=True) for n in range(1000)]
    assert min(Counter(before).values()) > 180
    fifth = choice.added("replica4")
    choice.reported(fifth, IDLE, 0, 0.0)
    for sequence, replica in enumerate(before):  # they have begun
        assert choice.choose_for_sequence(sequence, 0.0, starts=False) is replica
        choice.sequence_ended(sequence)
    after = [choice.choose_for_sequence(n, 0.0, starts=True) for n in range(1000)]
    moved = [new for old, new in zip(before, after, strict=True) if old is not new]
    assert set(moved) == {fifth}
    assert 140 < len(moved) < 260
    assert len(replicas) == 4


def test_the_sequences_of_a_lost_replica_go_elsewhere() -> None:
    choice, (lost, other) = pool(IDLE, IDLE)
    ids = [n for n in range(50) if choice.choose_for_sequence(n, 0.0, starts=True) is lost]
    choice.removed(lost)
    assert ids
    assert all(choice.choose_for_sequence(n, 0.0, starts=False) is other for n in ids)
    choice.removed(other)
    assert choice.choose_for_sequence(ids[0], 0.0, starts=False) is None


def test_sequences_without_steps_are_forgotten() -> None:
    choice, (replica, _) = pool(IDLE, IDLE)
    ids = [n for n in range(50) if choice.choose_for_sequence(n, 0.0, starts=True) is replica]
    third = choice.added("replica2")
    choice.reported(third, IDLE, 0, 0.0)
    later = [choice.choose_for_sequence(n, FORGOTTEN + 1.0, starts=False) for n in ids]
    assert third in later  # as for any front that has not seen their first steps


# Prompts

LLM = Load(
    ready=True,
    instances=1,
    full_rows=4,
    one_seconds=0.1,
    full_seconds=0.4,
    joins=True,
    prefill_seconds=0.35,
)


def waits(queued: int) -> Load:
    return msgspec.structs.replace(LLM, queued_rows=queued)


def test_prompts_that_begin_alike_go_to_one_replica_until_its_wait_costs_more() -> None:
    choice, replicas = pool(LLM, LLM, LLM)
    text = b"You are a helpful assistant. " * 100
    preferred = choice.choose(1, 0.0, text + b"one")
    assert preferred is not None
    for now in range(0, 500, 10):  # 0.1 s each; 0.35 s to read it elsewhere
        choice.reported(preferred, waits(6), 0, now)
        assert choice.choose(1, now, text + bytes([now % 256])) is preferred
        choice.reported(preferred, waits(7), 0, now + 5.0)
        assert choice.choose(1, now + 5.0, text) is not preferred
    for replica in replicas:
        choice.reported(replica, waits(42 if replica is preferred else 9), 0, 1000.0)
    assert choice.choose(1, 1000.0, text) is preferred  # all have too much to do
    choice.reported(preferred, waits(44), 0, 1100.0)
    assert choice.choose(1, 1100.0, text) is not preferred


def test_a_beginning_that_was_just_sent_elsewhere_is_cached_there_too() -> None:
    choice, (first, second) = pool(LLM, LLM)
    preferred = choice.choose(1, 0.0, b"popular")
    other = second if preferred is first else first
    assert preferred is not None
    choice.reported(preferred, waits(9), 0, 0.0)
    assert choice.choose(1, 0.0, b"popular") is other
    choice.reported(preferred, waits(1), 0, 1.0)
    assert choice.choose(1, 1.0, b"popular") is other  # it need not be read again
    choice.reported(preferred, waits(1), 0, 10.0)
    assert choice.choose(1, 10.0, b"popular") is preferred


def test_other_prompts_go_to_other_replicas() -> None:
    choice, _ = pool(*[LLM] * 4)
    places = Counter(choice.choose(1, 0.0, f"prompt {n}".encode()) for n in range(400))
    assert min(places.values()) > 60


def test_a_conversation_stays_with_its_replica_as_its_prompt_grows() -> None:
    choice, _ = pool(LLM, LLM, LLM)
    for number in range(20):
        begun = f"Conversation {number}. ".encode() + b"A question of some length. " * 10
        prompts = [begun + b"Another question. " * 10 * turn for turn in range(6)]
        times = [1000.0 * (6 * number + turn) for turn in range(6)]
        chosen = {choice.choose(1, now, one) for now, one in zip(times, prompts, strict=True)}
        assert len(chosen) == 1


def test_all_bits_of_a_hash_differ_independently() -> None:
    hashes = [hash_of(str(n).encode()) for n in range(1000, 2000)]
    for bit in range(64):
        assert 400 < sum(one >> bit & 1 for one in hashes) < 600
        for other in range(bit):
            assert 400 < sum((one >> bit ^ one >> other) & 1 for one in hashes) < 600


# Any order of events

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4)),
        st.tuples(st.just("remove"), st.integers(0, 4)),
        st.tuples(st.just("drain"), st.integers(0, 4)),
        st.tuples(st.just("report"), st.integers(0, 4)),
        st.tuples(st.just("heard"), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 4)),
        st.tuples(st.just("choose"), st.integers(1, 3)),
        st.tuples(st.just("step"), st.integers(0, 6)),
        st.tuples(st.just("prompt"), st.integers(0, 6)),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.5, 1.5])),
    ),
    max_size=80,
)


@examples(4)
@given(EVENTS, st.integers(0, 1000), st.sampled_from([IDLE, LLM, Load(ready=True)]))
def test_whatever_happens_a_living_replica_is_chosen_and_sequences_stay(
    events: list[tuple[str, int]], seed: int, load: Load
) -> None:
    random, now = Random(seed), 0.0
    choice = ReplicaChoice(Random(seed))
    living: dict[str, Replica] = {}
    draining: set[Replica] = set()
    reported: set[Replica] = set()
    quiet: dict[Replica, float] = {}  # since when something is due
    rows: Counter[Replica] = Counter()
    began: dict[int, Replica] = {}
    for what, number in events:
        replica = living.get(str(number))
        if what == "add":
            living[str(number)] = choice.added(str(number))
        elif what == "wait":
            now += number
        elif what in ("choose", "prompt", "step"):
            takers = [r for r in living.values() if r in reported and r not in draining]
            awake = [r for r in takers if now - quiet.get(r, now) <= SILENT]
            if what == "step":
                before = began.get(number)
                starts = before is None or before not in living.values()
                found = choice.choose_for_sequence(number, now, starts=starts)
                if not starts:
                    assert found is before
                    takers = awake = [found] if found is not None else []
                if found is not None:
                    began[number] = found
            else:
                prompt = str(number).encode() if what == "prompt" else b""
                found = choice.choose(1, now, prompt)
            assert (found is None) == (not takers)
            if found is not None:
                assert found in (awake or takers)
                choice.sent(found, number, now)
                rows[found] += number
                quiet.setdefault(found, now)
        elif replica is None:
            continue
        elif what == "remove":
            choice.removed(replica)
            del living[str(number)]
        elif what == "drain":
            choice.drains(replica)
            draining.add(replica)
        elif what == "end" and rows[replica]:
            ended = random.randint(1, rows[replica])
            choice.ended(replica, ended)
            rows[replica] -= ended
        elif what in ("report", "heard"):
            if what == "report":
                yours, others = random.randint(0, rows[replica]), random.randint(0, 20)
                told = msgspec.structs.replace(load, queued_rows=yours + others)
                choice.reported(replica, told, yours, now)
                reported.add(replica)
            else:
                choice.heard(replica, now)
            quiet.pop(replica, None)
            if rows[replica]:
                quiet[replica] = now
        for one in living.values():
            assert one.own == rows[one] >= 0
            assert one.queued >= 0
            assert 0.0 <= one.answer_seconds(1, now) < 1e4
