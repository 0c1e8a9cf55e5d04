from __future__ import annotations

import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.triton.backends.fil import ForestOutput, model_file
from wherry.triton.backends.load import backend_for
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonParameter,
)

#: Of two classes, and of three.
TWO = np.array([[0.2], [0.5], [0.7]], np.float32)
THREE = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], np.float32)


def config(name: str = "", **parameters: str) -> TritonConfig:
    values = {key: TritonParameter(string_value=value) for key, value in parameters.items()}
    return TritonConfig(name="trees", backend="fil", parameters=values, default_model_filename=name)


def answered(scores: Any, width: int = 1, **parameters: Any) -> Any:
    answer = ForestOutput.of(config(**parameters))(scores, width)
    return np.round(answer.astype(float), 3).tolist()


def test_a_regression_gives_its_scores() -> None:
    assert answered(TWO) == [[0.2], [0.5], [0.7]]
    assert answered(THREE, 3, output_class="false") == [[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]


@pytest.mark.parametrize("name", ["is_classifier", "output_class"])
def test_a_classifier_gives_the_class(name: str) -> None:
    assert answered(TWO, 1, **{name: "true"}) == [[0], [0], [1]]
    assert answered(THREE, 1, **{name: "TRUE"}) == [[2], [0]]


def test_the_threshold_decides_between_two_classes() -> None:
    assert answered(TWO, output_class="true", threshold="0.3") == [[0], [1], [1]]
    both = np.concatenate([1 - TWO, TWO], axis=1)
    assert answered(both, output_class="true", threshold="0.6") == [[0], [0], [1]]
    assert answered(THREE, output_class="true", threshold="0.1") == [[2], [0]]


def test_probabilities_are_those_of_one_class_or_of_both_as_the_output_is_wide() -> None:
    assert answered(TWO, 1, predict_proba="true") == [[0.2], [0.5], [0.7]]
    assert answered(TWO, 2, predict_proba="true") == [[0.8, 0.2], [0.5, 0.5], [0.3, 0.7]]
    assert answered(THREE, 3, predict_proba="true")[0] == [0.1, 0.2, 0.7]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"threshold": "high"}, "'threshold' must be a number, not 'high'"),
        ({"threshold": "nan"}, "'threshold' must be a number"),
        ({"predict_proba": "perhaps"}, "'predict_proba' must be true or false"),
    ],
)
def test_a_parameter_that_is_none_is_named(parameters: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'trees': parameter {told}"):
        ForestOutput.of(config(**parameters))


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("xgboost.json", "xgboost_json"),
        ("xgboost.ubj", "xgboost_ubj"),
        ("xgboost.model", "xgboost"),
        ("model.txt", "lightgbm"),
        ("checkpoint.tl", "treelite_checkpoint"),
    ],
)
def test_the_kind_follows_from_the_files_name(tmp_path: Path, file: str, kind: str) -> None:
    (tmp_path / file).touch()

    assert model_file(str(tmp_path), config()) == (kind, str(tmp_path / file))


def test_a_file_of_another_name_is_of_the_kind_that_the_parameter_says(tmp_path: Path) -> None:
    (tmp_path / "mine.bin").touch()

    found = model_file(str(tmp_path), config("mine.bin", model_type="lightgbm"))

    assert found == ("lightgbm", str(tmp_path / "mine.bin"))
    with pytest.raises(ConfigError, match="set the parameter 'model_type' to one of xgboost_ubj"):
        model_file(str(tmp_path), config("mine.bin"))
    with pytest.raises(ConfigError, match=r"must be one of xgboost_ubj, .* not 'catboost'"):
        model_file(str(tmp_path), config(model_type="catboost"))
    with pytest.raises(ConfigError, match=r"has no xgboost\.json"):
        model_file(str(tmp_path), config(model_type="xgboost_json"))


def test_without_treelite_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "xgboost.json").touch()
    monkeypatch.setitem(__import__("sys").modules, "treelite", None)

    with pytest.raises(ConfigError, match=r"needs treelite, .*: pip install 'wherry\[fil\]'"):
        backend_for(str(tmp_path), "1", TritonConfig(name="trees"))


# With Treelite: one tree, 1 where the first of two features is above 0, else 0.


def stump(folder: Path, classes: int = 1, postprocessor: str = "identity") -> str:
    """A checkpoint of one split: [0.25] or [0.75], of several classes the first or the last."""
    pytest.importorskip("treelite")
    from treelite.model_builder import (
        Metadata,
        ModelBuilder,
        PostProcessorFunc,
        TreeAnnotation,
    )

    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(
            num_feature=2,
            task_type="kBinaryClf" if classes == 1 else "kMultiClf",
            average_tree_output=False,
            num_target=1,
            num_class=[classes],
            leaf_vector_shape=(1, classes),
        ),
        tree_annotation=TreeAnnotation(
            num_tree=1, target_id=[0], class_id=[0 if classes == 1 else -1]
        ),
        postprocessor=PostProcessorFunc(name=postprocessor),
        base_scores=[0.0] * classes,
    )
    builder.start_tree()
    builder.start_node(0)
    builder.numerical_test(
        0, 0.0, default_left=True, opname="<=", left_child_key=1, right_child_key=2
    )
    builder.end_node()
    for key, place in ((1, 0), (2, classes - 1)):
        builder.start_node(key)
        if classes == 1:
            builder.leaf(0.25 if key == 1 else 0.75)
        else:
            builder.leaf([0.75 if one == place else 0.125 for one in range(classes)])
        builder.end_node()
    builder.end_tree()
    (folder / "1").mkdir()
    builder.commit().serialize(str(folder / "1" / "checkpoint.tl"))
    return str(folder)


ROWS = np.array([[-1, 0], [1, 0], [2, 9]], np.float32)


def predicted(folder: str, triton: TritonConfig) -> Any:
    model = backend_for(folder, "1", triton)
    with wherry.Runtime(model) as runtime:
        inputs: dict[str, Any] = {model.triton.input[0].name: ROWS}
        found = runtime.infer_batch("trees", **inputs)
    return np.asarray(found[model.triton.output[0].name]).tolist()


def test_a_checkpoint_needs_no_configuration(tmp_path: Path) -> None:
    folder = stump(tmp_path)
    model = backend_for(folder, "1", TritonConfig(name="trees"))

    assert model.triton.backend == "fil"
    assert [(one.name, one.dims) for one in model.triton.input] == [("input__0", [2])]
    assert [(one.name, one.dims) for one in model.triton.output] == [("output__0", [1])]
    assert model.triton.max_batch_size == 1024
    assert model.triton.dynamic_batching is not None
    assert predicted(folder, TritonConfig(name="trees")) == [[0.25], [0.75], [0.75]]


def test_a_classifier_of_two_runs_with_its_parameters(tmp_path: Path) -> None:
    folder = stump(tmp_path)

    assert predicted(folder, config(output_class="true")) == [[0], [1], [1]]
    assert predicted(folder, config(output_class="true", threshold="0.8")) == [[0], [0], [0]]
    wide = TritonOutput(name="output__0", data_type="TYPE_FP32", dims=[2])
    both = config(predict_proba="true")
    both.output = [wide]
    assert predicted(folder, both) == [[0.75, 0.25], [0.25, 0.75], [0.25, 0.75]]


def test_a_classifier_of_three_runs_with_its_parameters(tmp_path: Path) -> None:
    folder = stump(tmp_path, 3, "identity_multiclass")

    assert predicted(folder, config(is_classifier="true")) == [[0], [2], [2]]
    assert predicted(folder, config(predict_proba="true"))[1] == [0.125, 0.125, 0.75]


def test_dims_that_are_not_the_files_are_refused(tmp_path: Path) -> None:
    wrong = config(output_class="true")
    wrong.output = [TritonOutput(name="output__0", data_type="TYPE_FP32", dims=[3])]

    with pytest.raises(ConfigError, match=r"'output__0' has dims \[3\] .*; the file has 1"):
        backend_for(stump(tmp_path), "1", wrong)


def test_a_row_of_another_width_is_the_callers_mistake(tmp_path: Path) -> None:
    open_width = config()
    open_width.input = [TritonInput(name="features", data_type="TYPE_FP32", dims=[-1])]
    model = backend_for(stump(tmp_path), "1", open_width)
    with (
        wherry.Runtime(model) as runtime,
        pytest.raises(InvalidRequest, match="has 3 features; the trees know 2"),
    ):
        runtime.infer("trees", features=np.zeros(3, np.float32))


def test_a_file_that_holds_no_trees_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("treelite")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "xgboost.json").write_text('{"a": 1}')

    with pytest.raises(ConfigError, match=r"xgboost\.json cannot be read as xgboost_json: "):
        backend_for(str(tmp_path), "1", TritonConfig(name="trees"))


#: x[0] > 1.5, as XGBoost 1.7 wrote it with save_model("xgboost.model"): later ones cannot.
OLD_FORM = (
    "eNrNUrEOwiAUpDXRuJh+A7ODXbu0i99BoD4rpi0VUIemSf9M/6yWFJS4uTReQo477iVHgPH6iBBKQzQh8Hjl6TkQ"
    "WZZQJOpypRIOIKWQS+sXTEuAYOZWv8J0W3g6/INOw4jg06VH6JkaHixs7OGynjfmerOyae6NzOU9nTrh7r+xzEBp"
    "wjVIqrmo3evtIv+4No9LSl5x7QLx2m4EO0Ou+Q321mhxTSvACf7+K3hrLFIKpUhDJa1w0mKV0xJIIxS5Ay9OepyL"
    "cde9AG3mT4k="
)


def test_the_form_of_xgboost_before_2_is_read(tmp_path: Path) -> None:
    pytest.importorskip("treelite")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "xgboost.model").write_bytes(zlib.decompress(b64decode(OLD_FORM)))

    model = backend_for(str(tmp_path), "1", config(model_type="xgboost"))
    with wherry.Runtime(model) as runtime:
        rows = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0], [3.0, 1.0]], np.float32)
        answer = runtime.infer_batch("trees", input__0=rows)["output__0"]
    assert np.asarray(answer).tolist() == [[0.0], [0.0], [1.0], [1.0]]


LIBRARIES = {
    "xgboost.json": "xgboost",
    "xgboost.ubj": "xgboost",
    "model.txt": "lightgbm",
}


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), LIBRARIES.items())
@pytest.mark.filterwarnings("ignore")
def test_models_of_the_libraries_give_what_they_give(tmp_path: Path, file: str, name: str) -> None:
    pytest.importorskip("treelite")
    library = pytest.importorskip(name)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4)).astype(np.float32)
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    (tmp_path / "1").mkdir()
    path = str(tmp_path / "1" / file)
    if name == "xgboost":
        data = library.DMatrix(x, y)
        wanted = library.train({"objective": "multi:softprob", "num_class": 3}, data, 3)
        wanted.save_model(path)
        expected = wanted.predict(data)
    else:
        options = {"objective": "multiclass", "num_class": 3, "verbose": -1}
        trained = library.train(options, library.Dataset(x, y), 3)
        trained.save_model(path)
        expected = trained.predict(x)

    triton = config(predict_proba="true")
    with wherry.Runtime(backend_for(str(tmp_path), "1", triton)) as runtime:
        found = runtime.infer_batch("trees", input__0=x)["output__0"]

    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-5)
