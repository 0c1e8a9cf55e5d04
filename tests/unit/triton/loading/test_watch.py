"""Which models are loaded and unloaded, as their files come, change and go?"""

from hypothesis import given
from hypothesis import strategies as st

from wherry.triton.loading.watch import Changes, RepositoryWatch
from wherry.triton.repository.layout import Fingerprint

OLD: Fingerprint = (("model.py", 1, 1),)
NEW: Fingerprint = (("model.py", 2, 2),)


def test_files_that_are_loaded_are_left_alone() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({"a": OLD})
    assert watch.look({"a": OLD}, 100.0) == Changes([], [])
    assert not watch.is_settling


def test_changed_files_are_loaded_when_they_have_not_changed_for_the_settling_time() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({"a": OLD})
    assert watch.look({"a": NEW}, 0.0) == Changes([], [])
    assert watch.is_settling
    assert watch.look({"a": NEW}, 1.9) == Changes([], [])
    assert watch.look({"a": NEW}, 2.0) == Changes(["a"], [])
    assert not watch.is_settling
    assert watch.look({"a": NEW}, 9.0) == Changes([], [])  # loaded, or tried in vain


def test_another_change_begins_the_settling_time_anew() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({})
    watch.look({"a": OLD}, 0.0)
    assert watch.look({"a": NEW}, 1.5) == Changes([], [])
    assert watch.look({"a": NEW}, 3.0) == Changes([], [])
    assert watch.look({"a": NEW}, 3.5) == Changes(["a"], [])


def test_a_change_that_is_taken_back_is_none() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({"a": OLD})
    watch.look({"a": NEW}, 0.0)
    assert watch.look({"a": OLD}, 5.0) == Changes([], [])
    assert not watch.is_settling


def test_what_is_gone_is_unloaded_once_and_loaded_when_it_comes_back() -> None:
    watch = RepositoryWatch(0.0)
    watch.start({"a": OLD, "b": OLD})
    assert watch.look({}, 0.0) == Changes([], ["a", "b"])
    assert watch.look({}, 1.0) == Changes([], [])
    watch.look({"a": OLD}, 2.0)
    assert watch.look({"a": OLD}, 2.0) == Changes(["a"], [])


def test_what_goes_before_it_has_settled_was_never_there() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({})
    watch.look({"a": OLD}, 0.0)
    assert watch.look({}, 3.0) == Changes([], [])
    assert not watch.is_settling


FILES = st.dictionaries(st.sampled_from("ab"), st.sampled_from([OLD, NEW]))


@given(st.lists(st.tuples(FILES, st.integers(0, 3)), max_size=12))
def test_what_was_told_last_is_what_the_files_were_when_they_had_settled(
    looks: list[tuple[dict[str, Fingerprint], int]],
) -> None:
    watch = RepositoryWatch(2.0)
    watch.start({})
    now, loaded = 0, dict[str, Fingerprint]()
    for files, passed in looks:
        now += passed
        changes = watch.look(files, now)
        assert set(changes.unload) == loaded.keys() - files.keys()
        assert not set(changes.load) & {name for name in loaded if loaded[name] == files.get(name)}
        for name in changes.unload:
            del loaded[name]
        loaded.update({name: files[name] for name in changes.load})
    final = {"a": OLD, "b": NEW}
    watch.look(final, now)
    changes = watch.look(final, now + 2)
    loaded.update({name: final[name] for name in changes.load})
    assert loaded == final
