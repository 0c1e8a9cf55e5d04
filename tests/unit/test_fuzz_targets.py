"""Do the fuzzer's targets run, and do they hold on spoilt seeds? (Guided: `make test-long`.)"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, Target, TooExpensive, check

INPUTS = 150
#: What the fuzzer has found, by target: each is a defect that is mended.
FOUND: dict[str, list[bytes]] = {
    "answers": [
        b'data: {"choices":[{"text":"\xff"}]}\n\n',
        b'data: {"error":' + b"[" * 5000 + b"\n\n",
    ],
    "config-pbtxt": [
        b"max_batch_size: " + b"9" * 20_000 + b"x",
        b"max_batch_size: 0x" + b"f" * 5000,
    ],
}


def spoilt(dice: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.randint(1, 8)):
        at, length = dice.randrange(len(data) + 1), dice.randint(1, 12)
        match dice.randrange(5):
            case 0:
                data[at : at + length] = dice.randbytes(length)
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length] * dice.choice([1, 3, 100])
            case 3:
                other = dice.choice(seeds)
                data[at:at] = other[dice.randrange(len(other)) :]
            case _:
                data[at:at] = (
                    dice.choice([b'"', b"\\", b"[", b"{", b"\0", b"\xff", b"9", b"-"]) * length
                )
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_no_spoilt_input_is_a_find(name: str) -> None:
    target = TARGETS[name]
    for data in (*target.seeds, b"", *FOUND.get(name, ())):
        check(target, data)
    for seed in range(INPUTS):
        check(target, spoilt(random.Random(seed), [*target.seeds]))


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_reaches_further_than_a_refusal(name: str) -> None:
    """Else a target whose bytes no longer come in would go unnoticed."""
    reads: list[Callable[[], object]] = [
        lambda seed=seed: TARGETS[name].read(seed)  # type: ignore[misc]
        for seed in TARGETS[name].seeds
    ]
    assert any(_is_taken(read) for read in reads)


def _is_taken(read: Callable[[], object]) -> bool:
    try:
        read()
    except Exception:  # noqa: BLE001 - whatever it is, the seed was not taken
        return False
    return True


def test_an_expensive_input_is_a_find() -> None:
    with pytest.raises(TooExpensive, match="1 bytes cost"):
        check(Target(len, [b""]), b"x", floor=-1.0)


def test_an_exception_that_is_no_refusal_is_a_find(tmp_path: Path) -> None:
    with pytest.raises(UnicodeDecodeError):
        check(Target(lambda data: data.decode(), [b""]), b"\xff")
