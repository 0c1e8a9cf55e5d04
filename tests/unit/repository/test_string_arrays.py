"""Which lines of a script take the strings of a tensor for an array of numpy's string types?"""

from pathlib import Path

import numpy as np
import pytest

from wherry.repository.string_arrays import MAX_BYTES, calls_in, hints


@pytest.mark.parametrize(
    "code",
    [
        "np.char.decode(result.as_numpy('LABEL'))",
        "numpy.char.decode(client.infer(m, i).as_numpy('LABEL'), 'utf-8')",
        "labels = result.as_numpy('LABEL')\nnp.char.upper(labels)",
        "labels = r.as_numpy('L').reshape(-1)[0]\nnp.char.add(labels[:, 0], b'!')",
        "np.char.decode(pb_utils.get_input_tensor_by_name(request, 'TEXT').as_numpy().ravel())",
    ],
)
def test_strings_of_a_tensor_are_found(code: str) -> None:
    ((line, function),) = calls_in(code)
    assert line == len(code.splitlines())
    assert function.startswith("np.char.")


@pytest.mark.parametrize(
    "code",
    [
        "np.char.decode(result.as_numpy('LABEL').astype(bytes))",
        "np.char.decode(result.as_numpy('LABEL').astype('S'))",
        "np.char.decode(np.array(result.as_numpy('LABEL'), dtype=bytes))",
        "labels = np.array([b'x'])\nnp.char.decode(labels)",
        "np.char.decode()",
        "other.decode(result.as_numpy('LABEL'))",
        "def broken(:",
        "x = '\0'",
    ],
)
def test_other_arrays_and_other_texts_are_not(code: str) -> None:
    assert calls_in(code) == []


def test_the_remedy_is_right_for_both_kinds_of_arrays() -> None:
    for strings in (np.array([b"a\xc3\xa9", b""], dtype=object), np.array([b"a\xc3\xa9", b""])):
        assert np.char.decode(strings.astype(bytes)).tolist() == ["aé", ""]


def test_the_files_of_a_folder_are_named_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/model.py").write_text("import numpy as np\nnp.char.decode(t.as_numpy())\n")
    (tmp_path / "large.py").write_text("np.char.decode(t.as_numpy())\n" + "#" * MAX_BYTES)
    (tmp_path / "notes.txt").write_text("np.char.decode(t.as_numpy())\n")
    (told,) = hints(str(tmp_path))
    assert told.startswith("1/model.py:2: np.char.decode() takes strings of as_numpy()")
    assert ".astype(bytes)" in told
