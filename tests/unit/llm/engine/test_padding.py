"""Which sequences attend together: each row once, within the memory, in few calls."""

import random

from wherry.llm.engine.padding import Room, RowSpan, batches

ROOM = Room(per_token=512, per_pair=8, most=1 << 20)


def step(dice: random.Random, count: int) -> list[RowSpan]:
    spans, row = [], 0
    for place in range(count):
        rows = dice.choice([1, 1, 1, dice.randint(2, 600)])
        spans.append(RowSpan(place, row, rows, rows + dice.choice([0, dice.randint(0, 9000)])))
        row += rows
    return spans


def test_each_row_attends_once_over_its_own_context_within_the_memory() -> None:
    for seed in range(40):
        dice = random.Random(seed)
        spans = step(dice, dice.randint(1, 70))
        found: list[tuple[int, int, int]] = []
        for batch in batches(spans, ROOM):
            rows = max(part.rows for part in batch)
            context = max(part.context for part in batch)
            assert len(batch) == 1 or ROOM.holds(len(batch), rows, context)
            # Alone it is as small as it can be.
            assert rows == 1 or ROOM.holds(1, rows, context)
            for part in batch:
                last = part.first_row + part.rows
                seen = range(part.context - part.rows, part.context)
                found += zip(
                    [part.sequence] * part.rows, range(part.first_row, last), seen, strict=True
                )
        assert sorted(found) == [
            (q.sequence, q.first_row + offset, q.context - q.rows + offset)
            for q in spans
            for offset in range(q.rows)
        ]


def test_padding_is_at_most_four_times_what_is_long() -> None:
    room = Room(per_token=1, per_pair=1, most=1 << 60)
    for seed in range(40):
        dice = random.Random(seed)
        for batch in batches(step(dice, 64), room):
            contexts = [part.context for part in batch]
            assert max(contexts) <= max(256, 4 * min(contexts))
            rows = [part.rows for part in batch]
            assert max(rows) <= 4 * min(rows)


def test_the_number_of_calls_does_not_depend_on_that_of_sequences() -> None:
    room = Room(per_token=1, per_pair=1, most=1 << 60)
    lengths = [10, 100, 300, 2000, 8000]
    for count in (1, 3, 12, 50):
        spans = [RowSpan(place, place, 1, length) for place, length in enumerate(lengths * count)]
        assert len(batches(spans, room)) == 4  # up to 256, 1024, 4096 and 16,384


def test_sequences_that_decode_are_apart_from_prompts() -> None:
    together = batches([RowSpan(0, 0, 1, 50), RowSpan(1, 1, 2, 50), RowSpan(2, 3, 1, 60)], ROOM)
    assert [[part.sequence for part in batch] for batch in together] == [[0, 2], [1]]
