"""Do the default limits leave half of the memory to models, whatever there is of it?"""

import itertools

import pytest

from wherry.server.connections.limits import MIB, Limits, memory_plan

GIB = 2**30
SIZES = [512 * MIB, 700 * MIB, *(int(n * GIB) for n in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24))]
SIZES += [n * GIB for n in (31, 32, 48, 64, 128, 256)]


@pytest.mark.parametrize("memory", SIZES)
def test_a_full_server_takes_at_most_half_of_the_memory(memory: int) -> None:
    plan = memory_plan(memory)
    assert plan.full_bytes <= memory // 2
    # And what there is is used: less than a tenth of the half is left over.
    assert plan.full_bytes > 0.9 * memory // 2
    limits = plan.limits
    # Any single request fits into each place that it passes through.
    assert limits.max_body_bytes <= limits.max_received_bytes
    assert limits.max_body_bytes <= plan.max_queue_bytes
    assert limits.max_body_bytes <= limits.max_unsent_bytes


def test_the_table_of_the_documentation_is_what_is_computed() -> None:
    """By GiB: connections, and the largest body, waiting and received bytes in MiB."""
    table = {}
    for gib in (0.5, 1, 4, 16, 64, 256):
        plan = memory_plan(int(gib * GIB))
        limits = plan.limits
        table[gib] = (
            limits.max_connections,
            limits.max_body_bytes // MIB,
            plan.max_queue_bytes // MIB,
            limits.max_received_bytes // MIB,
        )
    assert table == {
        0.5: (256, 1, 18, 13),
        1: (320, 2, 53, 40),
        4: (1280, 18, 181, 136),
        16: (4096, 64, 926, 694),
        64: (4096, 64, 6151, 4613),
        256: (4096, 64, 27996, 20997),
    }


def test_more_memory_never_lowers_a_limit_but_where_a_second_thread_reads() -> None:
    plans = [memory_plan(memory) for memory in SIZES]
    for less, more in itertools.pairwise(plans):
        assert more.limits.max_connections >= less.limits.max_connections
        assert more.limits.max_body_bytes >= less.limits.max_body_bytes
        if more.offload_threads == less.offload_threads:
            assert more.max_queue_bytes >= less.max_queue_bytes


def test_where_the_fixed_terms_do_not_fit_there_is_a_rest_all_the_same() -> None:
    plan = memory_plan(128 * MIB)
    assert plan.full_bytes > 64 * MIB
    assert plan.max_queue_bytes >= MIB
    assert plan.limits.max_body_bytes == MIB


def test_what_is_given_stays_and_the_others_share_the_rest() -> None:
    given = memory_plan(
        4 * GIB,
        connections=7,
        body_bytes=50 * MIB,
        queue_bytes=11,
        received_bytes=12,
        unsent_bytes=13,
        limits=Limits(idle_timeout=3.0),
    )
    limits = given.limits
    assert (limits.max_connections, limits.max_body_bytes, limits.idle_timeout) == (7, 50 * MIB, 3)
    assert (given.max_queue_bytes, limits.max_received_bytes, limits.max_unsent_bytes) == (
        11,
        12,
        13,
    )
    larger = memory_plan(4 * GIB, body_bytes=30 * MIB)
    assert larger.max_queue_bytes < memory_plan(4 * GIB).max_queue_bytes
    assert larger.full_bytes <= 2 * GIB


def test_memory_that_is_not_known_counts_as_four_gibibytes() -> None:
    assert memory_plan(None) == memory_plan(4 * GIB)


def test_a_body_that_is_allowed_can_come_in_and_wait_and_leave() -> None:
    unsaid = Limits(max_connection_received_bytes=0)
    plan = memory_plan(4 * GIB, body_bytes=2 * GIB, limits=unsaid)
    limits = plan.limits
    room = (limits.max_received_bytes, limits.max_unsent_bytes, plan.max_queue_bytes)
    assert min(*room, limits.max_connection_received_bytes) > 2 * GIB
    assert memory_plan(None, limits=unsaid).limits.max_connection_received_bytes == 256 * MIB
    assert plan.full_bytes > 4 * GIB  # of which a warning speaks
