"""The link without sockets, threads or time: the test is the loop, the worker and the helper."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.properties import examples
from wherry.core.workers.encoding import Garbage
from wherry.core.workers.link import LARGE_BYTES, WorkerLink

READ_FROM, WRITE_TO = 3, 4


class FakeSocket:
    """A MessageSocket whose other end is the test."""

    def __init__(self) -> None:
        self.encoded: deque[str] = deque()
        self.sent: list[str] = []
        #: How many more messages the other end takes.
        self.room = 1000
        self.arrived: deque[str] = deque()
        self.frames: deque[str] = deque()
        self.has_left = False
        self.ended = self.broken = self.closed = False
        #: Messages are being encoded, or decoded, elsewhere.
        self.encoder_is_away = self.decoder_is_away = False

    def add(self, message: Any, *, slab: bool = False) -> None:
        if "bad" in message:
            raise TypeError("again")
        self.encoded.append(message)

    def write(self) -> bool:
        assert not self.encoder_is_away, "two writers"
        assert not self.closed
        if self.broken:
            raise BrokenPipeError
        while self.encoded and self.room:
            self.room -= 1
            self.sent.append(self.encoded.popleft())
        return not self.encoded

    def read(self) -> bool:
        assert not self.decoder_is_away, "two readers"
        assert not self.closed
        assert not self.frames, "what was read is written over"
        if not self.arrived:
            if self.ended:
                raise EOFError
            return False
        while self.arrived:
            self.frames.append(self.arrived.popleft())
        return True

    def decode(self, limit: int) -> list[str]:
        assert not self.decoder_is_away, "two readers"
        assert limit == LARGE_BYTES
        messages = []
        while self.frames and not ("large" in self.frames[0] or "garbage" in self.frames[0]):
            messages.append(self.frames.popleft())
        self.has_left = bool(self.frames)
        return messages

    def decode_next(self) -> str:
        message = self.frames.popleft()
        if "garbage" in message:
            raise Garbage(message)
        return message

    def was_read(self) -> bool:
        return not self.encoded

    def source(self) -> int:
        return READ_FROM

    def target(self) -> int:
        return WRITE_TO

    def close(self) -> None:
        self.closed = True
        self.encoded.clear()


class World:
    """A link, with everything around it in the test's hands."""

    def __init__(self, instead: Callable[[Any, Exception], Any] = lambda *_: None) -> None:
        self.socket = FakeSocket()
        self.calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.readers: dict[int, Callable[[], object]] = {}
        self.writers: dict[int, Callable[[], None]] = {}
        self.jobs: deque[Any] = deque()
        self.received: list[str] = []
        self.refused: list[str] = []
        self.ends: list[tuple[type[Exception], bool]] = []
        self.link = WorkerLink(
            self,
            self.socket,
            receive=self.receive,
            refused=lambda message, _: self.refused.append(message),
            ended=lambda error, read: self.ends.append((type(error), read)),
            aside=self.aside,
            instead=instead,
        )
        #: How many messages came together.
        self.together: list[int] = []
        self.link.start()

    # The loop

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        self.calls.append((callback, argument))

    def add_reader(self, file: int, read: Callable[[], object]) -> None:
        self.readers[file] = read

    def remove_reader(self, file: int) -> None:
        del self.readers[file]

    def add_writer(self, file: int, write: Callable[[], None]) -> None:
        assert file not in self.writers
        self.writers[file] = write

    def remove_writer(self, file: int) -> None:
        del self.writers[file]

    def turn(self) -> None:
        """What the loop does once: calls, and files that are ready."""
        for _ in range(len(self.calls)):
            callback, argument = self.calls.popleft()
            callback(argument)
        if READ_FROM in self.readers and (self.socket.arrived or self.socket.ended):
            self.readers[READ_FROM]()
        if WRITE_TO in self.writers and (self.socket.room or self.socket.broken):
            self.writers[WRITE_TO]()

    # The helper

    def aside(self, job: Any) -> None:
        encodes = isinstance(job, partial)
        if encodes:
            self.socket.encoder_is_away = True
        else:
            self.socket.decoder_is_away = True
        self.jobs.append((encodes, job))

    def work(self) -> None:
        """Do one job in the other thread."""
        encodes, job = self.jobs.popleft()
        job()
        if encodes:
            self.socket.encoder_is_away = False
        else:
            self.socket.decoder_is_away = False

    # The instance

    def send(self, *messages: str) -> None:
        for message in messages:
            self.link.add(message, large=message.startswith("large"))
        self.link.write()

    def receive(self, arrived: list[str]) -> None:
        self.together.append(len(arrived))
        for number, message in enumerate(arrived, 1):
            if "wrong" in message:
                raise Garbage(message)
            self.received.append(message)
            if "hold" in message:
                self.link.hold(arrived[number:])
                return

    def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(1000):
            if not (self.calls or self.jobs or self.socket.arrived or self.writers):
                self.turn()
                return
            if self.jobs:
                self.work()
            self.socket.room += 1
            self.turn()


@pytest.fixture
def world() -> World:
    return World()


def arrive(world: World, *messages: str) -> None:
    world.socket.arrived += messages


def end(world: World) -> None:
    world.socket.ended = True


def exited(world: World) -> None:
    end(world)
    world.link.exited(ChildProcessError())


def exited_open(world: World) -> None:
    """It has ended, and its child holds its sockets open."""
    world.link.exited(ChildProcessError())


def broken(world: World) -> None:
    world.socket.broken = True


@pytest.mark.parametrize(
    ("events", "sent", "received", "ends"),
    [
        (["> a", "< b"], ["a"], ["b"], []),
        (["> a", "> b", "< c", "< d"], ["a", "b"], ["c", "d"], []),
        (["> large 1", "> b", "> large 2", "> c"], ["large 1", "b", "large 2", "c"], [], []),
        (["full", "> a", "> large", "> b", "room"], ["a", "large", "b"], [], []),
        (["< large 1", "< b", "< large 2"], [], ["large 1", "b", "large 2"], []),
        (["> bad", "> a", "> large bad", "> b"], ["a", "b"], [], []),
        # The worker ends.
        ([end], [], [], [(EOFError, True)]),
        (["> a", end], ["a"], [], [(EOFError, True)]),
        (["full", "> a", end], [], [], [(EOFError, False)]),
        (["> large 1", "> b", "< c", end], ["large 1", "b"], ["c"], [(EOFError, True)]),
        (["< a", "< large", "< b", end], [], ["a", "large", "b"], [(EOFError, True)]),
        (["< large", "< b", exited], [], ["large", "b"], [(EOFError, True)]),
        (["< a", exited_open], [], ["a"], [(ChildProcessError, True)]),
        (["full", "> a", "< b", broken, "> c"], [], ["b"], [(BrokenPipeError, False)]),
        # It sends garbage.
        (["< a", "< garbage", "< b"], [], ["a"], [(Garbage, True)]),
        (["< large garbage", "< b"], [], [], [(Garbage, True)]),
        (["< wrong", "< b"], [], [], [(Garbage, True)]),
        (["< large wrong", "< b"], [], [], [(Garbage, True)]),
        # What is received asks to hold.
        (["< hold", "< b", exited], [], ["hold"], []),
        (["< hold", "< b", "settle", "resume", "< c"], [], ["hold", "b", "c"], []),
        (["< hold", "< b", exited, "settle", "resume"], [], ["hold", "b"], [(EOFError, True)]),
        (
            ["< large hold", "< b", "settle", "resume", end],
            [],
            ["large hold", "b"],
            [(EOFError, True)],
        ),
        (["< hold", "< garbage", "settle", "resume"], [], ["hold"], [(Garbage, True)]),
        (["< hold", "< b", "settle", "close", "resume"], [], ["hold"], [(EOFError, True)]),
        # It is closed.
        (["close", "> a", "< b", exited, end, "close"], [], [], [(EOFError, True)]),
        (["> large", "close"], [], [], [(EOFError, False)]),
    ],
)
def test_what_happens_on_a_link(
    world: World,
    events: list[str | Callable[[World], None]],
    sent: list[str],
    received: list[str],
    ends: list[tuple[type[Exception], bool]],
) -> None:
    """ "> a" sends, "< a" arrives."""
    for event in events:
        if not isinstance(event, str):
            event(world)
        elif event == "full":
            world.socket.room = 0
        elif event == "room":
            world.socket.room = 100
        elif event == "settle":
            world.settle()
        elif event == "resume":
            world.link.resume()
        elif event == "close":
            world.link.close()
        elif event.startswith(">"):
            world.send(event[2:])
        else:
            arrive(world, event[2:])
    for _ in range(20):
        if world.jobs:
            world.work()
        world.turn()

    assert (world.socket.sent, world.received, world.ends) == (sent, received, ends)
    assert world.socket.closed == bool(ends)
    if ends:
        assert not world.readers
        assert not world.writers


def test_a_reader_that_holds_leaves_a_file_alone_that_can_be_read(world: World) -> None:
    arrive(world, "hold")
    world.turn()
    arrive(world, "b")
    for _ in range(5):
        world.turn()
    assert not world.readers  # or the loop would spin
    world.link.resume()
    world.settle()

    assert world.received == ["hold", "b"]
    assert world.readers


def test_messages_that_came_together_are_received_at_once(world: World) -> None:
    arrive(world, "a", "b", "large", "c", "d")
    world.turn()
    world.settle()

    assert world.received == ["a", "b", "large", "c", "d"]
    assert world.together == [2, 1, 2]


def test_what_a_holding_reader_has_not_taken_comes_again_and_first(world: World) -> None:
    arrive(world, "hold 1", "b", "hold 2", "c", "large", "d")
    world.turn()
    assert world.received == ["hold 1"]
    world.link.resume()
    assert world.received == ["hold 1", "b", "hold 2"]
    world.link.resume()
    world.settle()

    assert world.received[3:] == ["c", "large", "d"]


def test_messages_that_are_added_go_with_one_write(world: World) -> None:
    world.link.add("a")
    world.link.add("b")
    assert world.socket.sent == []
    world.link.write()

    assert world.socket.sent == ["a", "b"]


@pytest.mark.parametrize("kind", ["bad", "large bad"])
def test_what_is_sent_instead_of_a_message_has_its_place(kind: str) -> None:
    world = World(instead=lambda message, error: f"refusal: {error}")
    world.send("a", kind, "b")
    world.settle()

    assert world.socket.sent == ["a", "refusal: again", "b"]
    assert world.refused == [kind]


def test_nothing_is_watched_or_unwatched_for_one_large_message(world: World) -> None:
    reader = world.readers[READ_FROM]
    arrive(world, "large")
    world.turn()
    world.work()
    world.turn()

    assert world.received == ["large"]
    assert world.readers[READ_FROM] == reader


def test_a_link_whose_loop_is_closed_is_abandoned(world: World) -> None:
    world.link.abandon()
    world.send("a")
    arrive(world, "b")

    assert world.socket.closed
    assert (world.socket.sent, world.received, world.ends) == ([], [], [])


class Caller:
    """A caller's thread that borrows the sockets of a link."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.has_them = False

    def acquire(self) -> None:
        if not self.has_them and self.world.link.acquire() is not None:
            assert not self.world.socket.closed
            self.has_them = True
            self.world.socket.encoder_is_away = self.world.socket.decoder_is_away = True

    def release(self, error: Exception | None = None) -> None:
        if self.has_them:
            self.has_them = False
            self.world.socket.encoder_is_away = self.world.socket.decoder_is_away = False
            self.world.link.release(error)


def test_the_sockets_of_an_idle_link_are_lent_until_the_loop_has_something_to_send(
    world: World,
) -> None:
    caller = Caller(world)
    caller.acquire()
    assert not caller.has_them
    world.link.offer()
    assert not world.readers
    caller.acquire()
    assert caller.has_them
    caller.release()
    caller.acquire()
    world.send("a")
    assert world.socket.sent == []
    caller.release()
    world.settle()
    caller.acquire()

    assert not caller.has_them
    assert world.socket.sent == ["a"]
    assert world.readers


@pytest.mark.parametrize(
    ("error", "ends"),
    [(EOFError(), [(EOFError, True)]), (Garbage(), [(Garbage, True)]), (None, [])],
)
def test_a_caller_that_meets_the_end_of_the_worker_gives_the_sockets_back(
    world: World, error: Exception | None, ends: list[tuple[type[Exception], bool]]
) -> None:
    caller = Caller(world)
    world.link.offer()
    caller.acquire()
    world.socket.ended = isinstance(error, EOFError)
    caller.release(error)
    world.settle()

    assert world.ends == ends


def test_what_is_under_way_is_not_lent(world: World) -> None:
    caller = Caller(world)
    world.send("large")
    world.link.offer()
    caller.acquire()
    assert not caller.has_them
    world.settle()
    world.link.offer()
    caller.acquire()

    assert caller.has_them
    caller.release()


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: messages keep their order both ways, each is told of
    once, and the end comes once, after everything that came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.count = 0
        self.given: list[str] = []
        self.came: list[str] = []
        self.at_an_end = False
        self.caller = Caller(self.world)

    def _number(self, kind: str) -> str:
        self.count += 1
        return f"{kind} {self.count}"

    @rule(kind=st.sampled_from(["small", "large", "bad", "large bad"]))
    def send(self, kind: str) -> None:
        message = self._number(kind)
        if not self.world.ends:
            self.given.append(message)
        self.world.link.add(message, large=message.startswith("large"))

    @rule()
    def write(self) -> None:
        self.world.link.write()

    @rule(kind=st.sampled_from(["small", "large", "hold", "large hold", "wrong", "garbage"]))
    def arrive(self, kind: str) -> None:
        if not self.world.socket.ended:
            message = self._number(kind)
            self.came.append(message)
            arrive(self.world, message)

    @rule(room=st.integers(0, 3))
    def room(self, room: int) -> None:
        self.world.socket.room = room

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule()
    def work(self) -> None:
        if self.world.jobs:
            self.world.work()

    @rule()
    def resume(self) -> None:
        self.world.link.resume()

    @rule()
    def offer(self) -> None:
        if not (self.world.socket.arrived or self.world.socket.frames):
            self.world.link.offer()

    @rule()
    def acquire(self) -> None:
        self.caller.acquire()

    @rule(meets=st.sampled_from([None, None, EOFError(), Garbage()]))
    def release(self, meets: Exception | None) -> None:
        self.caller.release(meets if self.world.socket.ended else None)

    @rule()
    def ends(self) -> None:
        end(self.world)

    @rule()
    def is_told_of_its_end(self) -> None:
        exited(self.world)

    @rule()
    def breaks(self) -> None:
        broken(self.world)

    @rule()
    def close(self) -> None:
        self.world.link.close()

    @invariant()
    def order_is_kept(self) -> None:
        world = self.world
        good = [message for message in self.given if "bad" not in message]
        assert world.socket.sent == good[: len(world.socket.sent)]
        assert world.received == self.came[: len(world.received)]
        assert len(world.ends) <= 1
        assert world.socket.closed == bool(world.ends)

    def teardown(self) -> None:
        world = self.world
        self.caller.release()
        closed = bool(world.ends)
        self.send("small")  # takes back what is lent
        world.link.write()
        for _ in range(100):
            world.link.resume()
            world.settle()
        self.order_is_kept()
        assert world.refused == [one for one in self.given if "bad" in one] or world.ends
        assert world.ends or world.socket.sent == [one for one in self.given if "bad" not in one]
        if not closed:
            bad = [n for n, one in enumerate(self.came) if "wrong" in one or "garbage" in one]
            assert world.received == self.came[: bad[0] if bad else None]
            assert world.ends or not (bad or world.socket.ended)
        if world.ends:
            assert not world.readers
            assert not world.writers


def test_any_order_of_events_keeps_the_rules() -> None:
    run_state_machine_as_test(AnyOrder, settings=examples(1.5))
