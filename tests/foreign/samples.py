"""What do the backends do that Triton has for tests and examples?

identity   OUTPUT0 is INPUT0, OUTPUT1 is INPUT1, ...
repeat     a response for each element of IN, after its DELAY in milliseconds
square     as many responses as IN says, each of them IN
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from wherry.core.models.model import Device
from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import BYTES
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.request import Column, Columns
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.backends.shared import parameter_number
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonTransactionPolicy,
)

#: Requests of one instance that may wait for their delays side by side.
_SIDE_BY_SIDE: Final = 16


class IdentityModel(RepositoryModel):
    """Gives each input back. `execute_delay_ms` and `creation_delay_sec` make it slow."""

    in_threads = True

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """Check that inputs and outputs are pairs, as the backend does."""
        where = f"model {config.name!r}"
        inputs = {one.name.removeprefix("INPUT"): one for one in config.input}
        outputs = {one.name.removeprefix("OUTPUT"): one for one in config.output}
        if len(config.input) != len(config.output) or inputs.keys() != outputs.keys():
            raise ConfigError(f"{where}: identity has INPUT0 and OUTPUT0, INPUT1 and OUTPUT1, ...")
        for number, one in inputs.items():
            if one.data_type != outputs[number].data_type:
                raise ConfigError(
                    f"{where}: {one.name!r} is {one.data_type}, {outputs[number].name!r} is"
                    f" {outputs[number].data_type}: they must be alike"
                )
        return config

    def load(self, device: Device) -> None:
        time.sleep(max(0.0, parameter_number(self.triton, "creation_delay_sec") or 0.0))
        self._delay = (parameter_number(self.triton, "execute_delay_ms") or 0.0) / 1000

    def signature(self, name: str = "") -> Signature:
        """The signature: rows of an output differ in shape where those of its input may."""
        signature = super().signature(name)
        forms = {one.name.removeprefix("INPUT"): one.form for one in signature.inputs}
        outputs = [
            replace(one, form=forms.get(one.name.removeprefix("OUTPUT"), one.form))
            for one in signature.outputs
        ]
        return replace(signature, outputs=tuple(outputs))

    def execute(self, **columns: Column) -> Columns:
        if self._delay > 0:
            time.sleep(self._delay)
        rows = len(next(iter(columns.values()))) if columns else 1
        inside = self.inward(columns)
        return self.outward(
            {
                f"OUTPUT{one.name.removeprefix('INPUT')}": self._copied(inside, one, rows)
                for one in self.triton.input
            }
        )

    def _copied(self, columns: Columns, tensor: TritonInput, rows: int) -> Column:
        """What came, or zeros for what is optional and did not come."""
        column = columns.get(tensor.name)
        if column is not None:
            return list(column) if isinstance(column, list) else np.array(column)
        lead = [rows] if self.triton.max_batch_size else []
        spec = self.signature().input(tensor.name)
        assert spec is not None
        sizes = [1 if size == -1 else size for size in spec.shape]
        if spec.datatype is BYTES:
            row = [b""] * int(np.prod(sizes))
            return [row] * rows if lead else row
        return np.zeros([*lead, *sizes], spec.datatype.dtype)


class RepeatModel(RepositoryModel):
    """Sends the elements of IN one by one, numbered by IDX."""

    in_threads = True

    inputs: ClassVar[tuple[TritonInput, ...]] = (
        TritonInput(name="IN", data_type="TYPE_INT32", dims=[-1]),
        TritonInput(name="DELAY", data_type="TYPE_UINT32", dims=[-1]),
        TritonInput(name="WAIT", data_type="TYPE_UINT32", dims=[1]),
    )
    outputs: ClassVar[tuple[TritonOutput, ...]] = (
        TritonOutput(name="OUT", data_type="TYPE_INT32", dims=[1]),
        TritonOutput(name="IDX", data_type="TYPE_UINT32", dims=[1]),
    )

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """The backend's inputs and outputs, unless they are there; it is always decoupled."""
        found = [one.name for one in config.input], [one.name for one in config.output]
        wanted = [one.name for one in cls.inputs], [one.name for one in cls.outputs]
        for side, given, names in zip(("input", "output"), found, wanted, strict=True):
            if given and sorted(given) != sorted(names):
                raise ConfigError(
                    f"model {config.name!r}: the {side}s of {config.backend} are {', '.join(names)}"
                )
        return msgspec.structs.replace(
            config,
            input=config.input or list(cls.inputs),
            output=config.output or list(cls.outputs),
            model_transaction_policy=TritonTransactionPolicy(decoupled=True),
        )

    def settings(self) -> dict[str, Any]:
        """Threads enough for requests to wait side by side, as the backend has them do."""
        settings = super().settings()
        if len(self.triton.instance_group) < 2:
            count = self.triton.instance_group[0].count if self.triton.instance_group else 1
            settings["instances"] = _SIDE_BY_SIDE * max(1, count)
            settings["device"] = "cpu"
        return settings

    def execute(self, **columns: Any) -> Iterator[dict[str, Any]]:
        elements, delays = np.ravel(columns["IN"]), np.ravel(columns["DELAY"])
        if len(elements) != len(delays):
            raise InvalidRequest(
                f"model {self.triton.name!r}: IN has {len(elements)} elements, DELAY"
                f" {len(delays)}: they must be as many"
            )
        for number, (element, delay) in enumerate(zip(elements, delays, strict=True)):
            time.sleep(float(delay) / 1000)
            response = {"OUT": element.reshape(1), "IDX": np.array([number], np.uint32)}
            yield self._response(response)

    def _response(self, response: dict[str, Any]) -> dict[str, Any]:
        """With the dimension of the batch, which is one row, if there is one."""
        if not self.triton.max_batch_size:
            return response
        return {name: array[np.newaxis] for name, array in response.items()}


class SquareModel(RepeatModel):
    """Sends IN as often as it says."""

    inputs = (TritonInput(name="IN", data_type="TYPE_INT32", dims=[1]),)
    outputs = (TritonOutput(name="OUT", data_type="TYPE_INT32", dims=[1]),)

    def execute(self, **columns: Any) -> Iterator[dict[str, Any]]:
        (element,) = np.ravel(columns["IN"])
        for _ in range(element):
            yield self._response({"OUT": element.reshape(1)})
