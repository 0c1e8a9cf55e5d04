"""How does a forest of decision trees (XGBoost, LightGBM, Treelite) of a repository run?

As Triton's FIL backend has it, by Treelite on the CPU, in threads that share one forest: it
releases the GIL, and one row takes some 30 us.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
import numpy as np

from wherry.core.api import DATATYPES, Array, Column, Columns, ConfigError, Device, InvalidRequest
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.backends.shared import (
    Shared,
    library,
    parameter_number,
    parameter_text,
    parameter_truth,
    version_file,
    with_batching,
)
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
)

#: The default file of each model_type.
FILES: Final = {
    "xgboost_ubj": "xgboost.ubj",
    "xgboost_json": "xgboost.json",
    "xgboost": "xgboost.model",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
#: The model_type where the configuration has none, by the file's extension.
_BY_SUFFIX: Final = {os.path.splitext(name)[1]: kind for kind, name in FILES.items()}

#: A row costs little, so that many may go together.
DEFAULT_MAX_BATCH_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class ForestOutput:
    """Makes outputs of the trees' scores, by the model's parameters."""

    is_classifier: bool = False
    predict_proba: bool = False
    threshold: float | None = None

    @classmethod
    def of(cls, config: TritonConfig) -> ForestOutput:
        # output_class is the older name of is_classifier.
        named = [parameter_truth(config, name) for name in ("is_classifier", "output_class")]
        proba = parameter_truth(config, "predict_proba") or False
        is_classifier = next((value for value in named if value is not None), proba)
        return cls(is_classifier, proba, parameter_number(config, "threshold"))

    def width(self, scores: int) -> int:
        return 1 if self.is_classifier and not self.predict_proba else scores

    def __call__(self, scores: Array, width: int) -> Array:
        """The output of `width` numbers a row: scores, probabilities or the class's index."""
        if self.is_classifier and not self.predict_proba:
            return _classes(scores, self.threshold)
        if scores.shape[1] == 1 and width == 2 and self.predict_proba:
            return np.concatenate([1 - scores, scores], axis=1)
        return scores


def _classes(scores: Array, threshold: float | None) -> Array:
    """Each row's class. Of two classes, the second one if its score is above the threshold."""
    if scores.shape[1] == 1 or (scores.shape[1] == 2 and threshold is not None):
        found = scores[:, -1] > (0.5 if threshold is None else threshold)
    else:
        found = scores.argmax(axis=1)
    return cast(Array, found.reshape(-1, 1))


class FilModel(RepositoryModel):
    """A forest of decision trees. Its instances are threads that share one copy."""

    in_threads = True
    default_instances = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forest: Shared[Forest] = Shared()
        #: The forest that was read to complete the configuration, until load() uses it.
        self._read_already: Forest | None = None
        self._answer = ForestOutput.of(self.triton)

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        return cls.opened(folder, version, config).triton

    @classmethod
    def opened(
        cls, folder: str, version: str, config: TritonConfig, *, program: str | None = None
    ) -> FilModel:
        """The model with its forest read, which knows the sizes of input and output."""
        forest = Forest.read(os.path.join(folder, version), config)
        model = cls(folder, version, complete(config, forest), program=program)
        model._read_already = forest
        return model

    def take(self) -> bool:
        """True: all instances run on the CPU, and share this object."""
        return True

    def load(self, device: Device) -> None:
        self._forest.take(self._read)

    def unload(self) -> None:
        self._forest.give_back()

    def execute(self, **columns: Column) -> Columns:
        input, output = self.triton.input[0], self.triton.output[0]
        forest = self._forest.value
        rows = np.asarray(self.inward(columns)[input.name])
        if rows.shape[-1] != forest.features:
            raise InvalidRequest(
                f"model {self.triton.name!r}: a row of {input.name!r} has {rows.shape[-1]}"
                f" features; the trees know {forest.features}"
            )
        scores = forest.scores(rows.reshape(-1, forest.features))
        dims = output.dims if output.reshape is None else output.reshape.shape
        answer = self._answer(scores, dims[-1] if dims else 1)
        shape = [*rows.shape[:-1], answer.shape[1]]
        dtype = DATATYPES[output.data_type.removeprefix("TYPE_")].dtype
        return self.outward({output.name: answer.astype(dtype, copy=False).reshape(shape)})

    def _read(self) -> Forest:
        forest, self._read_already = self._read_already, None
        return forest or Forest.read(self.version_folder, self.triton)


class Forest:
    """Loaded trees. Any thread, also several at once."""

    def __init__(self, treelite: Any, model: Any) -> None:
        self._predict = treelite.gtil.predict
        self._model = model
        self._dtype = np.dtype(model.input_type)
        self.features: int = model.num_feature
        #: Scores of a row: one of a regression or of two classes, else one of each class.
        self.width = self.scores(np.zeros((1, self.features))).shape[1]

    @classmethod
    def read(cls, folder: str, config: TritonConfig) -> Forest:
        kind, path = model_file(folder, config)
        treelite = library("treelite", config.name, "'wherry[fil]'")
        try:
            return cls(treelite, _read(treelite, kind, path, config))
        except Exception as error:  # of any type, by what is in the file
            why = re.sub(r"\[[\d:]+\] \S+:\d+: ", "", str(error)).partition("\n")[0]
            raise ConfigError(
                f"model {config.name!r}: {os.path.basename(path)} cannot be read as {kind}: {why}"
            ) from error

    def scores(self, rows: Array) -> Array:
        rows = np.ascontiguousarray(rows, self._dtype)
        # One thread: starting others costs more than the work, and there are more instances.
        found = self._predict(self._model, rows, nthread=1)
        return cast(Array, found.reshape(len(rows), -1))


def model_file(folder: str, config: TritonConfig) -> tuple[str, str]:
    kind = parameter_text(config, "model_type")
    if kind is not None and kind not in FILES:
        raise ConfigError(
            f"model {config.name!r}: parameter 'model_type' must be one of {', '.join(FILES)}, not"
            f" {kind!r}"
        )
    path = version_file(folder, config, [FILES[kind]] if kind else [*FILES.values()])
    found = kind or _BY_SUFFIX.get(os.path.splitext(path)[1])
    if found is None:
        raise ConfigError(
            f"model {config.name!r}: the kind of {os.path.basename(path)!r} is unknown: set the"
            f" parameter 'model_type' to one of {', '.join(FILES)}; for scikit-learn save"
            ' treelite.sklearn.import_model(model).serialize("checkpoint.tl")'
        )
    return found, path


def _read(treelite: Any, kind: str, path: str, config: TritonConfig) -> Any:
    if kind.startswith("xgboost"):
        form = {"xgboost_json": "json", "xgboost_ubj": "ubjson"}.get(kind, "inspect")
        lenient = parameter_truth(config, "xgboost_allow_unknown_field") or False
        load = treelite.frontend.load_xgboost_model
        try:
            return load(path, format_choice=form, allow_unknown_field=lenient)
        except (treelite.TreeliteError, ValueError):  # ValueError: it is neither of the two
            if kind != "xgboost":
                raise
            return treelite.frontend.load_xgboost_model_legacy_binary(path)
    if kind == "lightgbm":
        return treelite.frontend.load_lightgbm_model(path)
    return treelite.Model.deserialize(path)


def complete(config: TritonConfig, forest: Forest) -> TritonConfig:
    """`config` completed by the inputs and outputs of the trees. ConfigError if the two
    contradict each other."""
    where = f"model {config.name!r}"
    answer = ForestOutput.of(config)
    width = answer.width(forest.width)
    alone = all(len(tensor.dims) < 2 for tensor in config.output)
    batches = alone and not (config.input or config.max_batch_size)
    most = DEFAULT_MAX_BATCH_SIZE if batches else config.max_batch_size
    lead = [] if most else [-1]
    completed = msgspec.structs.replace(
        config,
        max_batch_size=most,
        input=[msgspec.structs.replace(one) for one in config.input]
        or [TritonInput(name="input__0", data_type="TYPE_FP32", dims=[*lead, forest.features])],
        output=[msgspec.structs.replace(one) for one in config.output]
        or [TritonOutput(name="output__0", data_type="TYPE_FP32", dims=[*lead, width])],
    )
    _check_sides(where, completed)
    input, output = completed.input[0], completed.output[0]
    for tensor in (input, output):
        if tensor.data_type == "TYPE_INVALID":
            tensor.data_type = "TYPE_FP32"
        if tensor.data_type in ("TYPE_STRING", "TYPE_BF16", "TYPE_BOOL"):
            raise ConfigError(f"{where}: {tensor.name!r} must be numbers, not {tensor.data_type}")
    sizes = {width, 2} if width == 1 and answer.predict_proba else {width}
    for tensor, right in ((input, {forest.features}), (output, sizes)):
        dims = tensor.dims if tensor.reshape is None else tensor.reshape.shape
        if not dims or dims[-1] not in {*right, -1}:
            raise ConfigError(
                f"{where}: {tensor.name!r} has dims {dims} in config.pbtxt; the file has"
                f" {' or '.join(map(str, sorted(right)))}"
            )
    return with_batching(completed)


def _check_sides(where: str, config: TritonConfig) -> None:
    for side, tensors in (("input", config.input), ("output", config.output)):
        if len(tensors) != 1:
            shap = "; for treeshap_output write a model.py with the library's own explainer"
            raise ConfigError(f"{where}: trees have one {side}, not {len(tensors)}{shap}")
