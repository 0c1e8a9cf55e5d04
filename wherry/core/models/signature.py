"""Which inputs and outputs does a function have, read from its annotations?

Each parameter is an input; one with a default is optional. A TypedDict, NamedTuple or dataclass as
the return type names several outputs; a tuple numbers them. Without `list[...]` (`text: str`) the
function takes one row at a time. A generator streams. docs/reference/annotations.md has all cases.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Final, Union, get_args, get_origin

import numpy as np

from wherry.core.models.annotations import hints_of, is_constraint, remedy, shown, without_aliases
from wherry.core.models.defaults import plain_default, wrong_default
from wherry.core.models.row_types import is_pydantic
from wherry.core.values.datatypes import (
    BOOL,
    BYTES,
    FP64,
    INT64,
    Datatype,
    Form,
    TensorSpec,
    TensorType,
)
from wherry.core.values.errors import ConfigError
from wherry.core.values.media import Audio, AudioSpec, File, FileSpec, ImageSpec, MediaSpec
from wherry.core.values.tensors import is_array_type, library_of

SCALARS: dict[type, Datatype] = {int: INT64, float: FP64, bool: BOOL}
ASYNC_STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)
STREAMS = (Iterator, Iterable, Generator, *ASYNC_STREAMS)
_LIST_IN_A_ROW: Final = "a list in one row is a Sequence[str]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model, and how its code takes them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    #: The code takes single values, not columns.
    row_wise: bool
    #: The code is a generator: one request has any number of responses.
    streams: bool
    #: The code is a coroutine function or an asynchronous generator.
    is_async: bool
    #: The code returns a mapping or object with the outputs by name ("named"), a tuple ("tuple")
    #: or the only output itself ("single").
    returns: str
    #: The class of the object, or tuple, that the code returns of several outputs; None: a dict.
    returned: type | None = None

    def with_numpy(self) -> Signature:
        """The same of code to which arrays come as numpy's."""
        inputs = tuple(replace(spec, library="") for spec in self.inputs)
        return replace(self, inputs=inputs)

    @property
    def defaults(self) -> dict[str, Any]:
        """What stands for a row of inputs that may be left out, by their names."""
        return {spec.name: spec.default for spec in self.inputs if spec.default is not None}

    def input(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.outputs if spec.name == name), None)


def read_signature(
    function: Callable[..., Any], model: str, *, returns: Any = None, one_row: bool = False
) -> Signature:
    """The signature from the annotations of a function or bound method. ConfigError names what is
    missing.

    `returns` replaces its return annotation. `one_row`: it takes one row, not columns; arrays are
    those of one row.
    """
    try:
        hints = hints_of(function)
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError) as error:
        remedy = "; import that name at module level" if isinstance(error, NameError) else ""
        raise ConfigError(
            f"model {model!r}: an annotation of {function.__qualname__} cannot be read: {error}"
            f"{remedy}"
        ) from None
    if returns is not None:
        hints["return"] = without_aliases(returns)
    inputs, found = _inputs(function, hints, model)
    by_row = found is True or (found is None and one_row)
    if not by_row:
        _check_defaults(function, inputs, model)
    if one_row and not by_row:
        raise ConfigError(
            f"model {model!r} takes one row: annotate single values (text: str), not columns;"
            f" {_LIST_IN_A_ROW}"
        )
    if "return" not in hints:
        raise ConfigError(
            f"model {model!r}: {function.__qualname__} has no return annotation;"
            f" write for example -> {_example_of_return(function, by_row)}"
        )
    result, streams, is_async = _unwrap_stream(hints["return"])
    if inspect.isgeneratorfunction(function) and not streams:
        raise ConfigError(
            f"model {model!r}: {function.__qualname__} yields, so it returns an iterator;"
            " write for example -> Iterator[list[str]]"
        )
    if inspect.iscoroutinefunction(function) and streams:
        raise ConfigError(
            f"model {model!r}: an async function that streams must `yield`;"
            f" {function.__qualname__} does not"
        )
    outputs, returns = _outputs(result, by_row, f"model {model!r}: return value")
    return Signature(
        inputs=inputs,
        outputs=outputs,
        row_wise=by_row,
        streams=streams,
        is_async=is_async or inspect.iscoroutinefunction(function),
        returns=returns,
        returned=None if returns == "single" else _class_of(result),
    )


def _inputs(
    function: Callable[..., Any], hints: Mapping[str, Any], model: str
) -> tuple[tuple[TensorSpec, ...], bool | None]:
    """An input for each parameter, and whether they are single values: of one row, not columns
    (None: arrays can be both)."""
    inputs: list[TensorSpec] = []
    row_wise: set[bool] = set()
    for parameter in inspect.signature(function).parameters.values():
        where = f"model {model!r}: parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where}: *args and **kwargs cannot be inputs; name each input")
        if parameter.name not in hints:
            remedy = "write for example list[str]"
            if parameter.name == "self":
                remedy = "for a method, subclass wherry.Model and call it `execute`"
            raise ConfigError(f"{where} has no annotation; {remedy}")
        optional = parameter.default is not parameter.empty
        spec, by_row = _tensor(hints[parameter.name], parameter.name, where, optional)
        if _is_array_of_strings(spec):
            raise ConfigError(
                f"{where}: strings are not an array here; write list[str] or list[bytes], a string"
                " for each row"
            )
        if optional:
            if problem := wrong_default(parameter.default, spec):
                raise ConfigError(f"{where}: {problem}")
            spec = replace(spec, default=plain_default(parameter.default, spec))
        inputs.append(spec)
        if by_row is not None:
            row_wise.add(by_row)
    if not inputs:
        raise ConfigError(f"model {model!r}: {function.__qualname__} has no parameters")
    if len(row_wise) > 1:
        raise ConfigError(
            f"model {model!r}: some parameters are columns (list[...]) and some single values;"
            f" make all of them columns, or none: {_LIST_IN_A_ROW}"
        )
    return tuple(inputs), next(iter(row_wise), None)


def _check_defaults(function: Callable[..., Any], inputs: Sequence[TensorSpec], model: str) -> None:
    """ConfigError for the default of a column that is not one for each row."""
    parameters = inspect.signature(function).parameters
    for spec in inputs:
        default = parameters[spec.name].default
        is_nothing = default is None or (isinstance(default, list | tuple) and not default)
        if spec.optional and spec.default is None and not is_nothing:
            raise ConfigError(
                f"model {model!r}: parameter {spec.name!r}: the default of a column is None, or a"
                f" number, text or bytes for each row, not {default!r}; write None, and fill it in"
                " the code"
            )


def _unwrap_stream(hint: Any) -> tuple[Any, bool, bool]:
    """The annotation of one response, whether the code streams, and whether it is async."""
    origin = get_origin(hint)
    if origin in STREAMS and get_args(hint):
        return get_args(hint)[0], True, origin in ASYNC_STREAMS
    return hint, False, False


def _class_of(hint: Any) -> type | None:
    """The class of what has several outputs; None of a TypedDict, whose values are dicts."""
    if typing.is_typeddict(hint):
        return None
    kind: type = get_origin(hint) or hint
    return kind


def _example_of_return(function: Callable[..., Any], row_wise: bool) -> str:
    example = "str" if row_wise else "list[str]"
    if inspect.isasyncgenfunction(function):
        return f"AsyncIterator[{example}]"
    return f"Iterator[{example}]" if inspect.isgeneratorfunction(function) else example


def _outputs(hint: Any, row_wise: bool, where: str) -> tuple[tuple[TensorSpec, ...], str]:
    named: Mapping[str, Any] | None = None
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        named = {f"output{i}": part for i, part in enumerate(get_args(hint))}
        returns = "tuple"
    elif (
        isinstance(hint, type)
        and hint not in (Audio, File)
        and (typing.is_typeddict(hint) or hasattr(hint, "_fields") or is_dataclass(hint))
    ):
        named = hints_of(hint)
        if is_dataclass(hint):
            named = {field.name: named[field.name] for field in fields(hint)}
        returns = "named"
    if named is None:
        return (_output(hint, "output", row_wise, where),), "single"
    specs = tuple(
        _output(part, name, row_wise, f"{where}: output {name!r}") for name, part in named.items()
    )
    if not specs:
        raise ConfigError(f"{where} has no outputs")
    return specs, returns


def _output(hint: Any, name: str, row_wise: bool, where: str) -> TensorSpec:
    spec, by_row = _tensor(hint, name, where, False)
    if _is_array_of_strings(spec):
        return replace(spec, form=Form.BYTES)  # a row is a list of them, whatever the code returns
    if by_row is True and not row_wise:
        raise ConfigError(
            f"{where} is one value, but the inputs are columns; return a list with one row for"
            " each row of the inputs"
            + (
                ", or columns by name as a NamedTuple or TypedDict"
                if spec.form is Form.JSON
                else ""
            )
        )
    if by_row is False and row_wise and spec.form is not Form.ARRAYS:
        # One row in, a list out: the row has any length.
        form = Form.ARRAYS if spec.form is Form.SCALARS else spec.form
        return replace(spec, form=form, shape=(-1,))
    return spec


def _is_array_of_strings(spec: TensorSpec) -> bool:
    return spec.datatype is BYTES and not spec.form.is_bytes


def _tensor(hint: Any, name: str, where: str, optional: bool) -> tuple[TensorSpec, bool | None]:
    """The tensor that an annotation describes, and whether it is a single row (None: an array can
    be both)."""
    hint, extras = _plain(_not_none(hint, where))
    hint = _not_none(hint, where)
    in_list = get_origin(hint) is list or hint is list
    element, inner = _plain(get_args(hint)[0]) if get_origin(hint) is list else (hint, ())
    marker, media = _marks((*extras, *inner), element, where)
    media = _media(element, media, where)
    if media is not None:
        return TensorSpec(name, BYTES, (), Form.BYTES, optional, media=media), not in_list
    kind = get_origin(element) or element
    if is_array_type(kind):
        if marker is None:
            example = "np.ndarray" if kind is np.ndarray else shown(kind)
            raise ConfigError(
                f"{where}: an array needs its datatype and the shape of a row;"
                f" write Annotated[{example}, wherry.FP32[384]]"
            )
        form = Form.ARRAYS if in_list else Form.ARRAY
        library = "" if kind is np.ndarray else library_of(kind)
        spec = TensorSpec(name, marker.datatype, marker.shape, form, optional, library=library)
        return spec, False if in_list else None
    by_row = not in_list
    if marker is not None:
        if marker.shape or element not in SCALARS or marker.datatype is BYTES:
            shape = list(marker.shape) or ""
            raise ConfigError(
                f"{where}: {marker.datatype}{shape} needs np.ndarray beside it, not {shown(hint)}"
            )
        return TensorSpec(name, marker.datatype, (), Form.SCALARS, optional), by_row
    if element in SCALARS:
        return TensorSpec(name, SCALARS[element], (), Form.SCALARS, optional), by_row
    if element is str or element is bytes:
        form = Form.TEXT if element is str else Form.BYTES
        return TensorSpec(name, BYTES, (), form, optional), by_row
    if _is_json(element):
        return TensorSpec(name, BYTES, (), Form.JSON, optional, json_type=element), by_row
    raise ConfigError(f"{where}: {shown(hint)} cannot be served; {remedy(element, in_list)}")


def _marks(
    extras: Sequence[Any], element: Any, where: str
) -> tuple[TensorType | None, MediaSpec | None]:
    """What `Annotated` adds to the type: the datatype and shape, or how media are decoded."""
    marker: TensorType | None = None
    media: MediaSpec | None = None
    for extra in extras:
        if isinstance(extra, Datatype):
            marker = TensorType(extra, ())
        elif isinstance(extra, TensorType):
            marker = extra
        elif isinstance(extra, ImageSpec | AudioSpec | FileSpec):
            media = extra
        elif is_constraint(extra):
            raise ConfigError(
                f"{where}: {extra!r} beside {shown(element)} would not be checked; check it in the"
                " code, or write a msgspec.Struct or a pydantic model with such a field"
            )
    return marker, media


def _plain(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is not Annotated:
        return hint, ()
    kind, *extras = get_args(hint)
    return kind, tuple(extras)


def _media(element: Any, media: MediaSpec | None, where: str) -> MediaSpec | None:
    """What the bytes of a row hold, by its annotation and the spec beside it; None: no media."""
    own: MediaSpec | None = None
    if element is Audio:
        own = AudioSpec()
    elif element is File:
        own = FileSpec()
    elif getattr(element, "__qualname__", "") == "Image" and element.__module__ in (
        "PIL.Image",
        "wherry.core.values.image_bytes",
    ):
        own = ImageSpec()
    if media is None:
        return own
    if own is not None and own.kind == media.kind:
        return media
    if element is bytes:
        return replace(media, python="bytes")
    is_array = element is np.ndarray or get_origin(element) is np.ndarray
    if is_array and isinstance(media, ImageSpec) and media.mode is not None:
        return replace(media, python="array")
    if is_array and isinstance(media, AudioSpec) and media.sample_rate is not None:
        return replace(media, python="array")
    remedy = {
        "image": "wherry.Image, bytes, or np.ndarray with a mode",
        "audio": "wherry.Audio, bytes, or np.ndarray with a sample_rate",
        "file": "wherry.File or bytes",
    }[media.kind]
    raise ConfigError(f"{where}: {type(media).__name__} goes beside {remedy}")


def _not_none(hint: Any, where: str) -> Any:
    """The X of `X | None`, else `hint`. ConfigError for other unions."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    choices = [arg for arg in get_args(hint) if arg is not type(None)]
    if len(choices) != 1:
        raise ConfigError(
            f"{where}: {shown(hint)} is a union; an input has one type; write dict or str, and"
            " check it in the code"
        )
    return choices[0]


def _is_json(hint: Any) -> bool:
    origin = get_origin(hint) or hint
    if origin is dict or origin is Mapping or origin is list or origin is Sequence:
        return True
    return isinstance(hint, type) and (
        typing.is_typeddict(hint)
        or is_dataclass(hint)
        or hasattr(hint, "__struct_fields__")
        or is_pydantic(hint)
    )
