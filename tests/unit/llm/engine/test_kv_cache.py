"""Which blocks hold which tokens, and what of it can be used again."""

import random

from wherry.llm.engine.kv_cache import BlockTable, KVCache


def opened(cache: KVCache, tokens: list[int], expected: int = 0) -> tuple[BlockTable, int]:
    """A sequence whose tokens are all computed."""
    table, hit = cache.open(tokens, expected)
    assert cache.grow(table, len(tokens))
    cache.register(table, tokens, len(tokens))
    return table, hit


def test_a_sequence_takes_a_block_only_when_it_has_tokens_for_it() -> None:
    cache = KVCache(blocks=4, block_size=4)
    table, _ = cache.open([1, 2, 3], expected_tokens=16)
    assert cache.grow(table, 3)
    assert cache.used_blocks == 1
    assert cache.grow(table, 4)
    assert cache.used_blocks == 1
    assert cache.grow(table, 5)
    assert cache.used_blocks == 2


def test_too_few_blocks_change_nothing() -> None:
    cache = KVCache(blocks=2, block_size=4)
    table, _ = opened(cache, [1, 2, 3, 4])
    assert not cache.grow(table, 13)
    assert len(table.blocks) == 1
    assert cache.grow(table, 8)
    cache.check()


def test_a_prefix_is_shared_while_its_first_user_is_there_and_after() -> None:
    cache = KVCache(blocks=8, block_size=4)
    first, hit = opened(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert hit == 0
    second, hit = opened(cache, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert hit == 8
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    cache.close(first)
    cache.close(second)
    assert cache.used_blocks == 0
    _, hit = opened(cache, [1, 2, 3, 4, 5, 6, 7, 8, 11])
    assert hit == 8
    assert (cache.hit_tokens, cache.looked_up_tokens) == (16, 27)
    cache.check()


def test_the_last_token_is_always_left_to_compute() -> None:
    cache = KVCache(blocks=8, block_size=4)
    opened(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    _, hit = opened(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert hit == 4


def test_the_same_tokens_after_other_ones_are_another_block() -> None:
    cache = KVCache(blocks=8, block_size=2)
    opened(cache, [1, 2, 3, 4, 5])
    _, hit = opened(cache, [9, 9, 3, 4, 5])
    assert hit == 0


def test_what_was_left_longest_ago_makes_room_first() -> None:
    cache = KVCache(blocks=4, block_size=2)
    for first in (10, 20):
        table, _ = opened(cache, [first] * 4)
        cache.close(table)
    opened(cache, [30] * 4)
    assert cache.open([10] * 5, 5)[1] == 0
    assert cache.open([20] * 5, 5)[1] == 4


def test_sequences_that_grow_in_turns_stay_in_one_piece_each() -> None:
    cache = KVCache(blocks=64, block_size=4)
    tables = [opened(cache, [start] * 5, expected=60)[0] for start in range(4)]
    for length in range(6, 61):
        for table in tables:
            assert cache.grow(table, length)
    assert [len(table.extents) for table in tables] == [1, 1, 1, 1]
    cache.check()


def test_room_that_was_promised_is_taken_when_there_is_no_other() -> None:
    cache = KVCache(blocks=4, block_size=1)
    first, _ = opened(cache, [1], expected=4)
    second, _ = opened(cache, [2, 2, 2], expected=3)
    assert cache.available_blocks == 0
    cache.close(second)
    assert cache.grow(first, 4)
    cache.check()


def test_every_block_is_somebodys_or_free_whatever_happens() -> None:
    dice = random.Random(7)
    for _ in range(30):
        cache = KVCache(blocks=dice.randint(3, 20), block_size=dice.randint(1, 4))
        open_tables: list[tuple[BlockTable, list[int]]] = []
        for _ in range(120):
            choice = dice.random()
            if choice < 0.4:
                tokens = [dice.randint(0, 1) for _ in range(dice.randint(1, 12))]
                table, hit = cache.open(tokens, dice.randint(0, 20))
                assert hit < len(tokens)
                if cache.grow(table, len(tokens)):
                    cache.register(table, tokens, len(tokens))
                    open_tables.append((table, tokens))
                else:
                    cache.close(table)
            elif choice < 0.7 and open_tables:
                table, tokens = dice.choice(open_tables)
                if cache.grow(table, len(tokens) + 1):
                    tokens.append(dice.randint(0, 1))
                    cache.register(table, tokens, len(tokens))
            elif open_tables:
                cache.close(open_tables.pop(dice.randrange(len(open_tables)))[0])
            cache.check()
            held = {block for table, _ in open_tables for block in table.blocks}
            assert cache.used_blocks == len(held)
            for table, tokens in open_tables:
                assert len(table.blocks) == cache.blocks_for(len(tokens))
                assert len(set(table.blocks)) == len(table.blocks)
