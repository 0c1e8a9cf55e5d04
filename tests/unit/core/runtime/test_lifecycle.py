"""Is a version always in one state, and found as long as that is READY?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.properties import examples
from wherry.core.runtime.lifecycle import ANY, Lifecycle, Status
from wherry.core.values.errors import ModelNotFound, ModelNotReady, WherryError


@dataclass(frozen=True, eq=False)
class Loaded:
    name: str
    version: str = "1"


Life = Lifecycle[Loaded]


def loaded(life: Life, *handles: Loaded) -> list[Loaded | None]:
    life.loading(handles)
    return [life.ready(handle) for handle in handles]


def begun(life: Life) -> None:
    life.begin("m", ["1"])


def loading(life: Life) -> None:
    life.loading([Loaded("m")])


def ready(life: Life) -> None:
    loaded(life, Loaded("m"))


def taken_out(life: Life) -> None:
    ready(life)
    life.take_out("m")


def unloaded(life: Life) -> None:
    ready(life)
    for handle in life.take_out("m"):
        life.freed(handle)


def failed(life: Life) -> None:
    begun(life)
    life.failed("m", ["1"], "no weights")


def reload_failed(life: Life) -> None:
    ready(life)
    failed(life)


def dropped(life: Life) -> None:
    handle = Loaded("m")
    life.loading([handle])
    life.dropped([handle])


def closed(life: Life) -> None:
    ready(life)
    for handle in life.close():
        life.freed(handle)


def old_one_stays(life: Life) -> None:
    """Replaced, and still at work."""
    ready(life)
    ready(life)


def old_one_freed(life: Life) -> None:
    ready(life)
    (old,) = loaded(life, Loaded("m"))
    assert old is not None
    life.freed(old)


def then(*events: Callable[[Life], object]) -> Callable[[Life], None]:
    def all_of_them(life: Life) -> None:
        for event in events:
            event(life)

    return all_of_them


@pytest.mark.parametrize(
    ("events", "status", "found"),
    [
        (then(), None, "'m' is not found"),
        (begun, (Status.LOADING, ""), "'m' is not found"),
        (loading, (Status.LOADING, ""), "not ready: loading"),
        (dropped, None, "'m' is not found"),
        (ready, (Status.READY, ""), ""),
        (old_one_stays, (Status.READY, ""), ""),
        (reload_failed, (Status.READY, ""), ""),
        (then(ready, begun), (Status.READY, ""), ""),
        (failed, (Status.UNAVAILABLE, "no weights"), "'m' has no available versions"),
        (then(failed, begun), (Status.LOADING, ""), "'m' has no available versions"),
        (then(failed, ready), (Status.READY, ""), ""),
        (taken_out, (Status.UNLOADING, ""), "'m' has no available versions"),
        (then(taken_out, loading), (Status.LOADING, ""), "not ready: loading"),
        (then(taken_out, failed), (Status.UNAVAILABLE, "no weights"), "no available versions"),
        (unloaded, (Status.UNAVAILABLE, "unloaded"), "'m' has no available versions"),
        (then(unloaded, ready), (Status.READY, ""), ""),
        (then(failed, unloaded), (Status.UNAVAILABLE, "unloaded"), "no available versions"),
        (then(reload_failed, lambda life: life.freed(*life.take_out("m"))),
         (Status.UNAVAILABLE, "unloaded"), "no available versions"),
        (closed, (Status.UNAVAILABLE, "unloaded"), "'m' is not found"),
        (then(failed, closed), (Status.UNAVAILABLE, "unloaded"), "no available versions"),
        (then(old_one_freed, lambda life: life.close()), (Status.UNLOADING, ""), "is not found"),
        (then(old_one_stays, lambda life: life.freed(*life.take_out("m"))),
         (Status.UNLOADING, ""), "no available versions"),
    ],
)  # fmt: skip
def test_each_event_leads_to_one_state(
    events: Callable[[Life], None], status: tuple[Status, str] | None, found: str
) -> None:
    life: Life = Lifecycle()
    events(life)
    assert life.status("m", "1") == status
    assert [one[2:] for one in life.versions()] == ([] if status is None else [status])
    if found:
        assert life.get("m") is None
        assert found in str(life.refusal("m"))
    else:
        assert life.get("m") is not None


def test_without_a_version_the_highest_number_is_found() -> None:
    life: Life = Lifecycle()
    two, ten = Loaded("m", "2"), Loaded("m", "10")
    loaded(life, ten, two)
    assert life.get("m") is ten
    assert life.get("m", "2") is two
    life.take_out("m", "10")
    assert life.get("m") is two


def test_what_is_not_served_is_told_from_what_was_never_there() -> None:
    life: Life = Lifecycle()
    loaded(life, Loaded("m", "1"), Loaded("m", "2"))
    life.take_out("m", "1")
    assert str(life.refusal("m", "1")).endswith("'m' version 1 is not at ready state")
    assert str(life.refusal("m", "3")).endswith("'m' version 3 is not found")
    loaded(life, Loaded("x", "1"))
    life.failed("x", ["2"], "nothing says what runs it", known=False)
    assert str(life.refusal("x", "2")).endswith("'x' version 2 is not found")
    life.failed("y", ["1"], "nothing says what runs it", known=False)
    assert str(life.refusal("y")).endswith("'y' is not found")
    life.failed("empty", [], "")
    assert str(life.refusal("empty")).endswith("'empty' has no available versions")


@pytest.mark.parametrize("names", [["m"], [ANY], ["m", ANY]])
def test_the_callers_of_an_expected_model_are_told_to_come_back(names: list[str]) -> None:
    life: Life = Lifecycle()
    life.announced.expect(names)
    life.announced.expect(names)
    life.announced.expect_no_more(names)
    assert isinstance(life.refusal("m"), ModelNotReady)
    loaded(life, Loaded("m"))
    assert isinstance(life.refusal("m", "2"), ModelNotFound)
    life.take_out("m")
    life.announced.expect_no_more(names)
    assert isinstance(life.refusal("m"), ModelNotFound)


def test_the_callers_of_a_version_that_loads_beside_another_are_told_to_come_back() -> None:
    life: Life = Lifecycle()
    loaded(life, Loaded("m", "1"))
    life.loading([Loaded("m", "2")])
    assert isinstance(life.refusal("m", "2"), ModelNotReady)
    assert isinstance(life.refusal("m", "3"), ModelNotFound)


def test_two_announcements_of_a_name_are_taken_back_one_by_one() -> None:
    life: Life = Lifecycle()
    life.announced.begin(["m", "member"])
    life.announced.begin(["m"])
    life.announced.end(["m", "member"])
    assert life.announced.is_under_way("m")
    assert not life.announced.is_under_way("member")
    life.announced.end(["m"])
    assert life.announced.names() == set()


def test_what_is_closed_loads_nothing_more_and_hands_out_what_is_not_freed() -> None:
    life: Life = Lifecycle()
    serving, coming, going = Loaded("a"), Loaded("b"), Loaded("c")
    loaded(life, serving, going)
    life.take_out("c")
    life.loading([coming])
    assert set(life.close()) == {serving, coming, going}
    with pytest.raises(ModelNotReady, match="the runtime is closed"):
        life.ready(coming)
    with pytest.raises(ModelNotReady, match="the runtime is closed"):
        life.loading([Loaded("d")])
    life.freed(going)
    assert set(life.close()) == {serving, coming}


def test_a_lookup_sees_one_moment_of_the_versions() -> None:
    """`get` reads the versions of a name without the lock: they are replaced, never changed."""
    life: Life = Lifecycle()
    loaded(life, Loaded("m", "1"))
    before = life._ready["m"]
    loaded(life, Loaded("m", "2"))
    assert list(before) == ["1"]
    before = life._ready["m"]
    life.take_out("m", "2")
    assert list(before) == ["1", "2"]


NAMES = st.sampled_from("ab")
VERSIONS = st.lists(st.sampled_from(["1", "2"]), min_size=1, unique=True)
WHYS = st.sampled_from(["no weights", "no file"])


class RandomLives(RuleBasedStateMachine):
    """Any events, beside a model that keeps the handles of each place in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.life: Life = Lifecycle()
        self.loading: list[Loaded] = []
        self.serving: dict[tuple[str, str], Loaded] = {}
        self.retiring: list[Loaded] = []
        self.begun: set[tuple[str, str]] = set()
        #: What the last failure of a version said, or "unloaded", until it is ready or taken out.
        self.why: dict[tuple[str, str], str] = {}
        self.retired: Counter[Loaded] = Counter()
        self.closed = False

    def _retires(self, handles: Iterable[Loaded]) -> None:
        for handle in handles:
            self.retiring.append(handle)
            self.retired[handle] += 1

    @rule(name=NAMES, versions=VERSIONS)
    def begin(self, name: str, versions: list[str]) -> None:
        self.life.begin(name, versions)
        self.begun |= {(name, version) for version in versions}

    @rule(name=NAMES, versions=VERSIONS)
    def load(self, name: str, versions: list[str]) -> None:
        handles = [Loaded(name, version) for version in versions]
        if self.closed:
            with pytest.raises(ModelNotReady):
                self.life.loading(handles)
            return
        self.life.loading(handles)
        self.loading += handles

    @rule(data=st.data())
    def become_ready(self, data: st.DataObject) -> None:
        if not self.loading:
            return
        handle = data.draw(st.sampled_from(self.loading))
        if self.closed:
            with pytest.raises(ModelNotReady):
                self.life.ready(handle)
            return
        replaced = self.life.ready(handle)
        self.loading.remove(handle)
        key = handle.name, handle.version
        assert replaced is self.serving.get(key)
        self._retires([] if replaced is None else [replaced])
        self.serving[key] = handle
        self.begun.discard(key)
        self.why.pop(key, None)

    @rule(data=st.data(), why=WHYS)
    def fail(self, data: st.DataObject, why: str) -> None:
        if not self.loading:
            return
        handle = data.draw(st.sampled_from(self.loading))
        self.life.dropped([handle])
        self.life.failed(handle.name, [handle.version], why)
        self.loading.remove(handle)
        self.begun.discard((handle.name, handle.version))
        self.why[handle.name, handle.version] = why

    @rule(name=NAMES, version=st.sampled_from([None, "1", "2"]))
    def take_out(self, name: str, version: str | None) -> None:
        expected = [
            one
            for one in self.serving.values()
            if one.name == name and version in (None, one.version)
        ]
        try:
            taken = self.life.take_out(name, version)
        except ModelNotFound:
            taken = []
        assert set(taken) == set(expected)
        for handle in taken:
            del self.serving[handle.name, handle.version]
            self.why.pop((handle.name, handle.version), None)
        self._retires(taken)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if not self.retiring:
            return
        handle = data.draw(st.sampled_from(self.retiring))
        self.life.freed(handle)
        self.life.freed(handle)  # to close the runtime may do it again
        self.retiring.remove(handle)
        key = handle.name, handle.version
        if key not in self.serving and key not in self._keys(self.retiring):
            self.why.setdefault(key, "unloaded")

    @rule()
    def close(self) -> None:
        left = self.life.close()
        assert Counter(left) == Counter([*self.serving.values(), *self.loading, *self.retiring])
        self._retires(self.serving.values())
        self.serving = {}
        self.closed = True

    @invariant()
    def what_is_ready_is_found_and_nothing_else(self) -> None:
        listed = {(name, version): status for name, version, status, _ in self.life.versions()}
        for name in "ab":
            for version in ("1", "2"):
                found = self.life.get(name, version)
                assert found is self.serving.get((name, version))
                assert (found is not None) == (listed.get((name, version)) is Status.READY)
                if found is None:
                    assert isinstance(self.life.refusal(name, version), WherryError)

    @invariant()
    def a_version_is_listed_once_and_no_handle_is_lost(self) -> None:
        listed = [(name, version) for name, version, _, _ in self.life.versions()]
        assert len(listed) == len(set(listed))
        here = [*self.serving.values(), *self.loading, *self.retiring]
        assert {(one.name, one.version) for one in here} <= set(listed)
        assert Counter(self.life.retiring()) == Counter(self.retiring)
        assert set(self.life.all_ready()) == set(self.serving.values())
        assert self.life.names() == {one.name for one in (*self.serving.values(), *self.loading)}

    @invariant()
    def a_handle_is_retired_once(self) -> None:
        assert set(self.retired.values()) <= {1}

    @invariant()
    def the_state_and_its_reason_follow_from_the_events(self) -> None:
        for name, version, status, why in self.life.versions():
            key = name, version
            if key in self.serving:
                assert (status, why) == (Status.READY, "")
            elif key in self.begun | self._keys(self.loading):
                assert (status, why) == (Status.LOADING, "")
            elif key in self.why:
                assert (status, why) == (Status.UNAVAILABLE, self.why[key])
            else:
                assert (status, why) == (Status.UNLOADING, "")
                assert key in self._keys(self.retiring)

    @staticmethod
    def _keys(handles: Iterable[Loaded]) -> set[tuple[str, str]]:
        return {(handle.name, handle.version) for handle in handles}


RandomLives.TestCase.settings = examples(0.6)
TestRandomLives = RandomLives.TestCase
