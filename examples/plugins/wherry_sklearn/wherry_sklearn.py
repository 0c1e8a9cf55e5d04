"""scikit-learn's estimators as models of a repository: `NAME/1/model.skops`.

A pickle is code, and a file of skops is none: what is not scikit-learn's own must be named in the
parameter `trusted` of config.pbtxt.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import skops.io
from skops.io.exceptions import UntrustedTypesFoundException

from wherry.core.api import Column, Columns, ConfigError, Device
from wherry.triton.api import FileTensor, RepositoryModel, TritonConfig, complete

FILE = "model.skops"


class SklearnModel(RepositoryModel):
    """X -> label and probabilities of a classifier; X -> y of all others. Threads share it."""

    files = (FILE,)
    in_threads = True

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        estimator = read(os.path.join(folder, version), config)
        given = FileTensor("X", "TYPE_FP64", (-1, int(estimator.n_features_in_)))
        return complete(config, [given], outputs_of(estimator))

    def load(self, device: Device) -> None:
        self._estimator = read(self.version_folder, self.triton)

    def unload(self) -> None:
        del self._estimator

    def execute(self, **columns: Column) -> Columns:
        rows = self.inward(columns)["X"]
        names = [tensor.name for tensor in self.triton.output]
        return self.outward({name: self._output(name, rows) for name in names})

    def _output(self, name: str, rows: Any) -> Column:
        if name == "probabilities":
            return np.asarray(self._estimator.predict_proba(rows), np.float64)
        if name == "label":
            labels = self._estimator.predict(rows)
            if labels.dtype.kind in "bi":
                return np.asarray(labels, np.int64)
            return [str(label).encode() for label in labels]
        found = np.asarray(method(self._estimator)(rows), np.float64)
        return found if found.ndim > 1 else found[:, np.newaxis]


def read(folder: str, config: TritonConfig) -> Any:
    """The estimator in a version's folder. ConfigError if it cannot be read, or holds code."""
    name = config.default_model_filename or FILE
    trusted = config.parameters.get("trusted")
    names = [one.strip() for one in trusted.string_value.split(",")] if trusted else []
    try:
        return skops.io.load(os.path.join(folder, name), trusted=names)
    except UntrustedTypesFoundException as error:
        raise ConfigError(
            f"model {config.name!r}: {error}; name them in the parameter 'trusted', with commas"
        ) from None
    except Exception as error:  # of zipfile, of JSON, of an estimator: of any type
        problem = f"model {config.name!r}: {name} is not a file of skops: {error}"
        raise ConfigError(problem) from error


def method(estimator: Any) -> Any:
    """What it computes of rows."""
    return estimator.predict if hasattr(estimator, "predict") else estimator.transform


def outputs_of(estimator: Any) -> list[FileTensor]:
    if not hasattr(estimator, "classes_"):
        width = np.atleast_2d(method(estimator)(np.zeros((1, estimator.n_features_in_)))).shape[1]
        return [FileTensor("y", "TYPE_FP64", (-1, width))]
    is_number = np.asarray(estimator.classes_).dtype.kind in "bi"
    label = FileTensor("label", "TYPE_INT64" if is_number else "TYPE_STRING", (-1,))
    if not hasattr(estimator, "predict_proba"):
        return [label]
    return [label, FileTensor("probabilities", "TYPE_FP64", (-1, len(estimator.classes_)))]
