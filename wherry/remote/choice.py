"""Which replica of a model gets a row?

The one that is predicted to answer first, of a few: two drawn at random, the one that was chosen
last, and one that has just run out of rows. Steps of a sequence, and prompts that begin alike, go
to the same replica. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import inf
from random import Random

import msgspec

from wherry.values.load import Load

#: Seconds of silence after which a replica that was sent rows gets no more.
SILENT = 1.0
#: Bytes that prompts for the same replica have in common. Few, so that a conversation has
#: them after its first turns: a prompt with fewer has another replica each time that it grows.
PREFIX_BYTES = 256
#: A replica has the beginning of a prompt cached if it was sent one like it within JUST_NOW
#: times what it takes to read one: what is sent so often is worth a place in several caches.
JUST_NOW = 10.0
#: Keys of prompts whose replica is remembered; of others it is found anew, which looks at all.
KEYS = 4096
#: How many times longer the wait may be where a prompt is cached, besides the time to read it: if
#: all have long queues, to read it elsewhere would make them longer still.
WORSE = 4.0
#: Seconds since its last step after which the replica of a sequence is forgotten.
FORGOTTEN = 600.0
#: Seconds that a batch takes at least in a forecast, so that a forecast of many of them ends.
LEAST = 1e-6
#: How much of the past remains in the share of a front's own rows, with each report.
FADING = 0.98
#: That share is taken to be at least this.
LEAST_SHARE = 0.01

_WORD = (1 << 64) - 1


class Replica:
    """What a front knows of one replica of a model: its last report, how many of the front's own
    rows it has, and a forecast of its queue from both.

    The own rows are counted by the front alone: a report that was made before they arrived says
    nothing of them. It brings the rows of others, and how far the replica has come.
    """

    __slots__ = (
        "answered",
        "draining",
        "due_at",
        "free_at",
        "group",
        "idle",
        "load",
        "name",
        "others",
        "own",
        "place",
        "queued",
        "round_trip",
        "seed",
        "unheard_since",
    )

    def __init__(self, name: str, round_trip: float = 0.0) -> None:
        self.name = name
        #: Seconds that a message to it and one back are on the way.
        self.round_trip = round_trip
        #: Its last report.
        self.load = Load()
        #: Rows of this front that were sent and have not ended; rows of others, as last reported.
        self.own = self.others = 0
        self.draining = False
        #: Since when a sign of life is due; None: none is.
        self.unheard_since: float | None = None
        #: When an answer to one of its own rows is expected at the latest.
        self.due_at = inf
        #: Rows of this front have ended since the last report.
        self.answered = False
        #: The forecast: idle instances, when one is free if none is idle, and the rows that wait.
        self.idle = 0
        self.free_at = -inf
        self.queued = 0.0
        #: The list of replicas in which it is, and at which index.
        self.group: list[Replica] | None = None
        self.place = 0
        #: For rendezvous hashing.
        self.seed = hash_of(name.encode())

    def __repr__(self) -> str:
        return f"<Replica {self.name}: {self.own} own rows, {self.others} of others>"

    def is_silent(self, now: float) -> bool:
        return self.unheard_since is not None and now - self.unheard_since > SILENT

    def answer_seconds(self, rows: int, now: float) -> float:
        """Predicted seconds until `rows` that are sent now are answered; 0.0 as long as nothing
        is known of its times."""
        load = self.load
        # What is overdue is expected to take as long again.
        overdue = now - self.due_at if now > self.due_at else 0.0
        if load.joins:
            return overdue + load.first_seconds(self.queued, rows)
        if self.free_at <= now:
            self._advance(now)
        if self.idle:
            return overdue + load.batch_seconds(rows)
        seconds = overdue + max(0.0, self.free_at - now)
        queued = self.queued
        if queued >= load.full_rows:
            seconds += load.waiting_seconds(queued)
            queued %= load.full_rows
        return seconds + load.batch_seconds(queued + rows)

    def take(self, load: Load, yours: int, now: float, share: float) -> None:
        """Begin the forecast anew from a report, in which `yours` rows are this front's."""
        self.load = load
        self.others = max(0, load.queued_rows + load.running_rows - yours)
        coming = max(0, self.own - yours)
        here = self.own - coming + self.others
        self.queued = max(0, here - load.running_rows)
        self.idle = 0 if load.queued_rows else max(0, load.instances - load.busy)
        # What is sent now arrives a round trip after the report was made.
        self.free_at = now + load.free_after - self.round_trip
        if coming:
            self._arrive(coming / share, now)
        self.due_at = inf
        if self.own:  # they may be in the batch after the one that runs
            self.due_at = max(now, self.free_at) + load.batch_seconds(load.full_rows)
            self.due_at += self.round_trip

    def send(self, rows: int, now: float, share: float) -> None:
        """Rows are sent there now, which are this share of what all fronts send."""
        if self.unheard_since is None:
            self.unheard_since = now
            self.due_at = now + self.answer_seconds(rows, now) + self.round_trip
        elif self.free_at <= now:
            self._advance(now)
        self.own += rows
        self._arrive(rows / share, now)

    def heard(self, now: float) -> None:
        """Something has come from it."""
        self.unheard_since = now if self.own else None
        self.due_at = max(now, self.due_at) if self.own else inf

    def end(self, rows: int) -> None:
        """Rows of this front have ended."""
        self.own -= rows
        self.answered = True

    def _arrive(self, rows: float, now: float) -> None:
        load = self.load
        if self.idle and not load.joins:
            self.idle -= 1
            taken = min(rows, load.full_rows)
            self.free_at = now + load.batch_seconds(taken) / (load.instances or 1)
            rows -= taken
        self.queued += rows

    def _advance(self, now: float) -> None:
        """Go on to the present: whenever an instance is free it runs a batch of what waits."""
        load = self.load
        if load.joins:
            return
        if not load.one_seconds:  # no report has told any times: not a step for each row
            self.queued = 0.0
        while self.free_at <= now and self.queued > 0:
            taken = min(self.queued, load.full_rows)
            self.queued -= taken
            self.free_at += LEAST + load.batch_seconds(taken) / (load.instances or 1)
        if self.free_at <= now and not self.own:
            self.idle = self.idle or 1


class ReplicaChoice:
    """Chooses the replicas for one model in one front. For one thread at a time.

    Of what comes in one message `ended` is told before `reported`. A choice takes a few
    microseconds with any number of replicas, but that of a sequence's first step and of the first
    prompt that begins so, which look at each.
    """

    def __init__(self, random: Random) -> None:
        self._random = random.random
        self._all: dict[str, Replica] = {}
        #: Those that get new rows, and those that would if they were not silent.
        self._open: list[Replica] = []
        self._silent: list[Replica] = []
        self._last: Replica | None = None
        #: Those that had no rows after they had answered this front, the latest last.
        self._idle: dict[Replica, None] = {}
        #: The rows of all reports, and of these the front's own; the older ones count less. What
        #: this front sends to a replica since its report, the others are expected to send alike:
        #: they see the same. Without that, fronts that see the best replica fill it up together.
        self._rows = self._own_rows = self._share = 1.0
        #: The replica of each sequence, and when it was asked for, the longest ago first.
        self._sequences: dict[object, tuple[Replica, float]] = {}
        #: Keys of prompts, and the replicas that they prefer of those that get new rows now.
        self._preferred: dict[int, Replica] = {}
        #: Keys of prompts, and the replicas that they were sent to: when; the longest ago first.
        self._prompts: dict[tuple[int, Replica], float] = {}
        #: The last report with times: a replica that has run nothing yet is assumed to be as fast.
        self._known = Load()

    def __repr__(self) -> str:
        return f"<ReplicaChoice: {len(self._open)} of {len(self._all)} get new rows>"

    @property
    def replicas(self) -> Sequence[Replica]:
        return tuple(self._all.values())

    # Events

    def added(self, name: str, round_trip: float = 0.0) -> Replica:
        """A replica is there, in place of one of the same name. It gets rows after its first
        report. Fronts that call the replicas alike agree about sequences and prompts. What its
        `round_trip` turns out to be may be set there later."""
        if (before := self._all.get(name)) is not None:
            self.removed(before)
        replica = self._all[name] = Replica(name, round_trip)
        return replica

    def removed(self, replica: Replica) -> None:
        """A replica is gone: it is chosen no more. Its rows may still end."""
        self._move(replica, None)
        if self._lives(replica):
            del self._all[replica.name]
        self._idle.pop(replica, None)

    def drains(self, replica: Replica) -> None:
        """A replica is about to leave: it gets nothing but further steps of its sequences."""
        replica.draining = True
        self._move(replica, None)

    def sent(self, replica: Replica, rows: int, now: float) -> None:
        """So many rows are sent there; they count at once."""
        replica.send(rows, now, self._share)

    def ended(self, replica: Replica, rows: int) -> None:
        """`rows` that were sent there are answered, cancelled or given up."""
        assert 0 <= rows <= replica.own, f"{rows} rows end of {replica!r}"
        replica.end(rows)

    def reported(self, replica: Replica, load: Load, yours: int, now: float) -> None:
        """A replica has told its load, of which `yours` rows are this front's."""
        known = self._known
        if load.one_seconds:
            self._known = load
        elif known.one_seconds:
            seconds = known.batch_seconds(load.full_rows)
            load = msgspec.structs.replace(
                load, one_seconds=known.one_seconds, full_seconds=seconds
            )
        if rows := max(yours, load.queued_rows + load.running_rows):
            self._rows = FADING * self._rows + rows
            self._own_rows = FADING * self._own_rows + yours
            self._share = max(LEAST_SHARE, self._own_rows / self._rows)
        replica.take(load, yours, now, self._share)
        self.heard(replica, now)
        if replica.answered and replica.idle and replica.group is self._open:
            self._idle[replica] = None
        replica.answered = False

    def heard(self, replica: Replica, now: float) -> None:
        """Something has come from a replica that shows that it works."""
        replica.heard(now)
        takes = replica.load.ready and not replica.draining and self._lives(replica)
        group = self._open if takes else None
        if replica.group is not group:
            self._move(replica, group)

    # Choices

    def choose(self, rows: int, now: float, prompt: bytes = b"") -> Replica | None:
        """Choose for `rows` that will be `sent` together; None: no replica takes any.

        `prompt` is how the text begins that a language model is to go on with. The replica that
        probably has it cached is chosen unless the wait there costs more than to read it anew.
        """
        best = self._soonest(self._likely(now), rows, now)
        if best is not None and prompt:
            best = self._with_cached(hash_of(prompt[:PREFIX_BYTES]), best, rows, now)
        self._last = best
        return best

    def choose_for_sequence(self, sequence: object, now: float, *, starts: bool) -> Replica | None:
        """Choose for a step of a sequence: the replica that had the steps before, as long as it
        lives. None: there is no replica, or for a first step none that takes any."""
        self._forget(now)
        replica, _ = self._sequences.pop(sequence, (None, 0.0))
        if replica is None or not self._lives(replica):
            if starts:
                self._set_aside_silent(now)
                group: Sequence[Replica] = self._open or self._silent
            else:  # it has begun by another front, perhaps on one that takes no new rows now
                group = self.replicas
            if not group:
                return None
            replica = _highest(group, hash_of(repr(sequence).encode()))
        self._sequences[sequence] = replica, now
        return replica

    def sequence_is_on(self, sequence: object, replica: Replica, now: float) -> None:
        """The first step of a sequence goes to this replica, other than `choose_for_sequence`
        says."""
        self._sequences[sequence] = replica, now

    def sequence_ended(self, sequence: object) -> None:
        """The last step of a sequence was chosen for, or the sequence is lost."""
        self._sequences.pop(sequence, None)

    # Parts

    def _lives(self, replica: Replica) -> bool:
        return self._all.get(replica.name) is replica

    def _likely(self, now: float) -> Sequence[Replica]:
        """A few that may be the best. They are not silent, unless all are."""
        while count := len(self._open):
            first = int(self._random() * count)
            second = (first + 1 + int(self._random() * (count - 1))) % count
            likely = [self._open[first], self._open[second]]
            if self._last is not None and self._last.group is self._open:
                likely.append(self._last)
            if self._idle and (idle := self._still_idle(now)) is not None:
                likely.append(idle)
            silent = [one for one in likely if one.is_silent(now)]
            if not silent:
                return likely
            for one in dict.fromkeys(silent):
                self._move(one, self._silent)
        return self._silent and [self._silent[int(self._random() * len(self._silent))]]

    def _with_cached(self, key: int, best: Replica, rows: int, now: float) -> Replica:
        """The replica that prompts of this key prefer, or the best one: if that was sent one just
        now, or if its wait is longer than WORSE times that and the time to read a prompt."""
        preferred = self._preferred.get(key)
        if preferred is None:
            if len(self._preferred) >= KEYS:
                self._preferred.clear()
            assert best.group is not None
            preferred = self._preferred[key] = _highest(best.group, key)
        reading = preferred.load.prefill_seconds
        while self._prompts:
            old, since = next(iter(self._prompts.items()))
            if now - since <= JUST_NOW * reading:
                break
            del self._prompts[old]
        if (key, best) not in self._prompts and not preferred.is_silent(now):
            soon, later = best.answer_seconds(rows, now), preferred.answer_seconds(rows, now)
            if later <= WORSE * soon + reading:
                best = preferred
        self._prompts.pop((key, best), None)
        self._prompts[key, best] = now
        return best

    def _still_idle(self, now: float) -> Replica | None:
        """The latest that has run out of rows, if it has got none since."""
        while self._idle:
            replica = next(reversed(self._idle))
            if replica.idle and replica.group is self._open:
                return replica
            del self._idle[replica]
        return None

    def _soonest(self, likely: Sequence[Replica], rows: int, now: float) -> Replica | None:
        best, least = None, inf
        for replica in likely:
            seconds = replica.answer_seconds(rows, now)
            if seconds < least or (
                seconds == least  # as while no times are known
                and best is not None
                and replica.own + replica.others < best.own + best.others
            ):
                best, least = replica, seconds
        return best

    def _set_aside_silent(self, now: float) -> None:
        for replica in [one for one in self._open if one.is_silent(now)]:
            self._move(replica, self._silent)

    def _move(self, replica: Replica, group: list[Replica] | None) -> None:
        """Put a replica into another list; their order does not matter."""
        if replica.group is not None:
            last = replica.group.pop()
            if last is not replica:
                replica.group[replica.place] = last
                last.place = replica.place
        self._preferred.clear()
        replica.group = group
        if group is not None:
            replica.place = len(group)
            group.append(replica)

    def _forget(self, now: float) -> None:
        while self._sequences:
            sequence, (_, asked_at) = next(iter(self._sequences.items()))
            if now - asked_at < FORGOTTEN:
                break
            del self._sequences[sequence]


def hash_of(key: bytes) -> int:
    """64 bits, the same in each process."""
    return int.from_bytes(blake2b(key, digest_size=8).digest())


def _highest(replicas: Sequence[Replica], key: int) -> Replica:
    """The replica of a key by rendezvous hashing: fronts that see the same replicas agree, and
    when one comes or goes no key moves between the others."""
    best, most = replicas[0], -1
    for replica in replicas:
        mixed = (key ^ replica.seed) * 0x9E3779B97F4A7C15 & _WORD
        mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _WORD
        if mixed > most:
            best, most = replica, mixed
    return best
