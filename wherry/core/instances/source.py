"""How does a worker process find the model that it is to run?

By import, as the parent did: a module, its file, and a name in it. What stands in `__main__` is
imported under the name `__wherry_main__`, so that `if __name__ == "__main__":` protects a script
from being run again in each of its workers.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Set
from operator import attrgetter
from types import ModuleType
from typing import Any

import msgspec

from wherry.core.models.changes import AttributeChanges
from wherry.core.models.model import FunctionModel, Model
from wherry.core.values.errors import ConfigError

#: The name under which a worker imports the program's main module.
MAIN = "__wherry_main__"


AnyText = bytes
"""A text that need not be one in UTF-8, as the name of a file: what msgpack has no text for."""


def sent(text: str) -> AnyText:
    return text.encode("utf-8", "surrogatepass")


def received(text: AnyText) -> str:
    return text.decode("utf-8", "surrogatepass")


class Module(msgspec.Struct, frozen=True, array_like=True):
    """A module as a worker imports it: its name, and the file that must be behind it."""

    name: str
    file: AnyText | None


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Where a model comes from. Only the arguments of a class's constructor are pickled, and what
    was changed after it, by the parent, for its own child."""

    module: Module
    qualname: str
    arguments: bytes | None = None
    #: The program's main module, where the arguments may have their classes.
    main: Module | None = None
    #: Pickled changes of its classes, and of the object.
    changes: tuple[bytes, bytes] | None = None


#: Set while a worker imports the user's program, which must not start workers itself then.
importing: Source | None = None


def source_of(model: Model, name: str) -> Source:
    """How a worker builds the same model; ConfigError if it could not."""
    target: Any = model.function if isinstance(model, FunctionModel) else type(model)
    module = sys.modules.get(target.__module__)
    qualname = target.__qualname__
    if module is None or not _is_there(module, qualname, target, model):
        raise _cannot_be_sent(name, f"{target.__module__}.{qualname}")
    main = _module(sys.modules["__main__"])
    where = main if module is sys.modules["__main__"] else _module(module)
    if where is None:  # a notebook, or a prompt
        raise _cannot_be_sent(name, f"{qualname} of the interactive session")
    arguments = _pickled(model, name) if target is type(model) else None
    return Source(where, qualname, arguments, main, _pickled_changes(model, name))


def import_model(source: Source, imported: Callable[[], None] = lambda: None) -> Model:
    """In the worker: the model that `source_of` described. Runs the user's module; then `imported`,
    and what constructs the model."""
    global importing
    importing = source
    try:
        found = attrgetter(source.qualname)(_import(source.module))
        imported()
        if source.changes is not None:
            for place, values in _Unpickler(source, source.changes[0]).load().items():
                for name, value in values.items():
                    setattr(found.__mro__[place], name, value)
        if source.arguments is not None:
            args, kwargs = _Unpickler(source, source.arguments).load()
            found = found(*args, **kwargs)
        model = found if isinstance(found, Model) else FunctionModel(found, {})
        if source.changes is not None:
            own = _Unpickler(source, source.changes[1], model)
            AttributeChanges(*own.load()).apply(model)
    finally:
        importing = None
    return model


def refuse_while_importing(name: str) -> None:
    """A script without a main guard would start workers in its workers, for ever."""
    if importing is not None:
        file = None if importing.module.file is None else received(importing.module.file)
        raise ConfigError(
            f"model {name!r} is started while a worker process imports {file}:"
            ' put what starts it under `if __name__ == "__main__":`'
        )


class _Unpickler(pickle.Unpickler):
    """For what comes from our own parent, whose main module has another name here."""

    def __init__(self, source: Source, pickled: bytes, model: Model | None = None) -> None:
        super().__init__(io.BytesIO(pickled))
        self._main = source.main
        self._model = model

    def persistent_load(self, _: Any) -> Any:
        return self._model

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and self._main is not None:
            return attrgetter(name)(_import(self._main))
        return super().find_class(module, name)


def _module(module: ModuleType) -> Module | None:
    file = getattr(module, "__file__", None)
    file = None if file is None else os.path.abspath(file)
    if module.__name__ != "__main__":
        return Module(module.__name__, None if file is None else sent(file))
    if file is None or not os.path.isfile(file):
        return None
    # `python -m package.module` has a proper name, and may use relative imports.
    spec = getattr(module, "__spec__", None)
    return Module(MAIN if spec is None else spec.name, sent(file))


def _import(module: Module) -> ModuleType:
    if module.name in sys.modules:
        return sys.modules[module.name]
    if module.file is None:
        return importlib.import_module(module.name)
    file = received(module.file)
    try:
        spec = importlib.util.find_spec(module.name)
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None else spec.origin
    if origin is not None and os.path.exists(origin) and os.path.samefile(origin, file):
        return importlib.import_module(module.name)
    return import_file(module.name, file)


def import_file(name: str, file: str) -> ModuleType:
    """Import a file that the import system would not find under this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is not a Python file: it cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_there(module: ModuleType, qualname: str, target: object, model: Model) -> bool:
    """Does an import find it? Not what stands in a function, nor a lambda."""
    try:
        found: Any = attrgetter(qualname)(module)
    except AttributeError:
        return False
    # A class replaced by something of its name, or a function by its model: both are found.
    return found is target or found is model or getattr(found, "function", None) is target


def _pickled(model: Model, name: str) -> bytes:
    try:
        return pickle.dumps(model.constructed_with)
    except Exception as error:  # whatever the user's arguments raise
        raise ConfigError(
            f"model {name!r}: the arguments of {type(model).__name__}(...) cannot be sent to a"
            f" worker process ({error}): pass plain values, or use isolation='thread'"
        ) from error


class _Pickler(pickle.Pickler):
    """For what may refer to the model itself, which the worker makes."""

    def __init__(self, model: object, file: io.BytesIO) -> None:
        super().__init__(file)
        self._model = model

    def persistent_id(self, value: Any) -> str | None:
        return "model" if value is self._model else None


#: Identical to no value.
_NO_MODEL = object()


def _pickled_changes(model: Model, name: str) -> tuple[bytes, bytes] | None:
    """The changes of classes, and of the object. ConfigError if one cannot be sent."""
    changes = model.attribute_changes()
    containers = {n for n in changes.within if isinstance(vars(model)[n], list | dict | set)}
    attributes = _sendable(name, changes.attributes, changes.within - containers, model)
    of_classes = {
        place: _sendable(name, values, changes.within_classes, cls=type(model).__mro__[place])
        for place, values in changes.of_classes.items()
    }
    if not (attributes or changes.removed or any(of_classes.values())):
        return None
    own = io.BytesIO()
    _Pickler(model, own).dump((attributes, changes.removed))
    return pickle.dumps(of_classes), own.getvalue()


def _sendable(
    name: str,
    changed: Mapping[str, Any],
    own: Set[str],
    model: object = _NO_MODEL,
    cls: type | None = None,
) -> dict[str, Any]:
    """What of these attributes, of the model or its class, is passed on. ConfigError if one cannot
    be sent, but for those of which a worker makes its `own` (a lock, a class's list of its
    objects)."""
    found = {}
    for attribute, value in changed.items():
        try:
            if cls and getattr(value, "__qualname__", "") == f"{cls.__qualname__}.{attribute}":
                raise ValueError("it has the name of what it replaces")
            _Pickler(model, io.BytesIO()).dump(value)
        except Exception as error:  # whatever the user's objects raise
            if attribute in own:
                continue
            raise ConfigError(
                f"model {name!r}: its attribute {attribute!r}, which was set after the constructor,"
                f" cannot be sent to a worker process ({error}): pass it to the constructor, set it"
                " in load(), or use isolation='thread'"
            ) from error
        found[attribute] = value
    return found


def _cannot_be_sent(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"model {name!r}: {what} cannot be sent to a worker process: define it at module level,"
        " or use isolation='thread'"
    )
