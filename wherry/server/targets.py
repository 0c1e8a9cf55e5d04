"""Which models does `app.py`, `package.module`, `module:object` or `llm:checkpoint` mean?

A module's models are the `wherry.Model` objects at its top level (decorated functions, pipelines,
instances), and an object of each Model class defined in it that has none there. A file is imported
under the name it would have in a program, with its folder on sys.path, so that a worker process
finds the same module.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from wherry.core.api import (
    ConfigError,
    FunctionModel,
    LoadFailed,
    Model,
    Runtime,
    import_file,
    import_from,
)
from wherry.llm.api import TargetError, is_checkpoint, language_model
from wherry.triton.api import FILES, is_remote

#: How other servers call what is `execute` here.
_OTHERS_EXECUTE = ("predict", "forward", "infer", "inference", "call", "run", "handle", "__call__")


class TargetRaised(ConfigError):
    """Raised if the user's code raises when it is imported; `__cause__` is its error."""


def is_repository(target: str) -> bool:
    """Whether it is a model repository: a folder that is not a package, or the URL of one."""
    path = Path(target)
    return is_remote(target) or (path.is_dir() and not (path / "__init__.py").is_file())


def load_targets(targets: Sequence[str]) -> list[Model] | Runtime:
    """The models that the targets name, in their order, each once; or the one Runtime."""
    import_from_here()
    models: list[Model] = []
    for target in targets:
        found = load_target(target)
        if isinstance(found, Runtime):
            if len(targets) > 1:
                raise TargetError(f"{target} is a Runtime: serve it alone")
            return found
        models += [model for model in found if not any(model is known for known in models)]
    return models


def import_from_here() -> None:
    """Find `module:object` in this folder, as `python -m` does."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing can be found in it
        return
    _import_from(here, already=here in sys.path or "" in sys.path)


def _import_from(folder: str, *, already: bool) -> None:
    if (file := Path(folder, "wherry.py")).is_file():
        raise TargetError(f"{file} hides the package of this name from the models: rename the file")
    if not already:
        import_from(folder)


def load_target(target: str) -> list[Model] | Runtime:
    """The models of one target. TargetError, or TargetRaised with the cause."""
    where, _, name = target.partition(":")
    if is_checkpoint(target):
        return [language_model(where, name)]
    module = _import(target, where)
    if name:
        return _models_of_object(_attribute(module, name, where), target)
    models = models_in(module)
    if not models:
        raise TargetError(
            f"{target} has no models at its top level: decorate a function with @wherry.model,"
            " or subclass wherry.Model"
        )
    return models


def models_in(module: ModuleType) -> list[Model]:
    """Every model at the top level of a module, in the order of definition."""
    values = [value for name, value in vars(module).items() if not name.startswith("_")]
    instances = [value for value in values if isinstance(value, Model)]
    made = {type(value) for value in instances}
    models: list[Model] = []
    for value in values:
        if isinstance(value, Model):
            candidate = value
        elif (
            isinstance(value, type)
            and issubclass(value, Model)
            and value.__module__ == module.__name__
            and value not in made
            and _is_meant(value, values, module.__name__)
            and not issubclass(value, FunctionModel)
        ):
            made.add(value)
            candidate = _instance(value, module.__name__)
        else:
            continue
        if not any(candidate is known for known in models):
            models.append(candidate)
    return models


def _is_meant(cls: type[Model], beside: Sequence[Any], where: str) -> bool:
    """Whether a class is a model, not a base class of others. TargetError if it looks like a model
    and has no `execute`."""
    if cls.execute is not Model.execute:
        return True
    below = [one for one in beside if isinstance(one, type) and one is not cls]
    if inspect.isabstract(cls) or any(issubclass(one, cls) for one in below):
        return False
    instead = next((name for name in _OTHERS_EXECUTE if name in vars(cls)), "")
    if not instead and "load" not in vars(cls):
        return False
    remedy = f"rename its {instead}()" if instead else "write it, or begin the class's name with _"
    raise TargetError(f"{where}: {cls.__name__} has no execute(); {remedy}")


def _instance(cls: type[Model], where: str) -> Model:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise TargetError(
            f"{where}: {cls.__name__} cannot be made without arguments ({error}); make an object"
            f" at the top level, for example `model = {cls.__name__}(...)`"
        ) from None
    try:
        return cls()
    except Exception as error:  # the user's constructor: anything may come
        raise TargetRaised(f"{where}: {cls.__name__}() raised") from error


def _models_of_object(value: Any, target: str) -> list[Model] | Runtime:
    if isinstance(value, Runtime):
        return value
    if isinstance(value, Model):
        return [value]
    if isinstance(value, type) and issubclass(value, Model):
        return [_instance(value, target)]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        models: list[Model] = []
        for item in value:
            found = _models_of_object(item, target)
            if isinstance(found, Runtime):
                raise TargetError(f"{target}: a Runtime is served alone, not in a list")
            models += found
        if models:
            return models
    remedy = "decorate it with @wherry.model" if inspect.isfunction(value) else f"it is {value!r}"
    raise TargetError(f"{target} is not a model, list of models, or Runtime; {remedy}")


def _attribute(module: ModuleType, name: str, where: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise TargetError(f"{where} has no {part!r}{_meant(part, dir(value))}")
        value = getattr(value, part)
    return value


def _import(target: str, where: str) -> ModuleType:
    path = Path(where)
    is_path = where.endswith(".py") or os.sep in where
    if is_path:
        if not path.is_file():
            beside = [str(path.with_name(name)) for name in _names_in(path.parent)]
            meant = _meant(where, beside)
            if not meant and re.fullmatch(r"[\w-]+/[\w.-]+(?<!\.py)", where):
                meant = f"; a model of the Hugging Face hub is llm:{where}"
            raise TargetError(f"{where}: no such file{meant}")
        if path.suffix != ".py":
            raise _no_program(where)
        name, folder = module_name(path.resolve())
        return _import_file(name, folder, path.resolve())
    if path.is_file():
        raise _no_program(where)
    if not where or not all(part.isidentifier() for part in where.split(".")):
        raise TargetError(f"{target!r} is neither a file (app.py) nor a module (package.app:model)")
    if not _is_module(where):
        hint = f"; did you mean {where}.py?" if Path(f"{where}.py").is_file() else ""
        raise TargetError(f"no module {where!r} here or installed{hint}")
    return _run(lambda: importlib.import_module(where), where)


def _meant(name: str, known: Iterable[str]) -> str:
    """A guess at what a wrong name was to be, for the end of an error."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _names_in(folder: Path) -> list[str]:
    try:
        return [one.name for one in islice(folder.iterdir(), 1000)]
    except OSError:
        return []


def _no_program(where: str) -> TargetError:
    if where.endswith(".gguf"):
        return TargetError(f"{where} is a checkpoint; write llm:{where}")
    kind = f"model{Path(where).suffix}"
    serve = (
        f"serve a folder with it as NAME/1/{kind}, or "
        if kind in FILES and kind != "model.txt"
        else ""
    )
    return TargetError(f"{where} is not a Python file; {serve}read it in load() of a model")


def _is_module(name: str) -> bool:
    parent, _, _ = name.rpartition(".")
    if parent and not _is_module(parent):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module without a spec, such as __main__
        return name in sys.modules
    except (ImportError, AttributeError):
        return False


def module_name(path: Path) -> tuple[str, Path]:
    """The name under which a program imports a file, and the folder for sys.path: inside a package
    (folders with an __init__.py) the dotted name and the package's own folder."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _import_file(name: str, folder: Path, path: Path) -> ModuleType:
    _import_from(str(folder), already=str(folder) in sys.path)
    known = sys.modules.get(name)
    if known is None and all(part.isidentifier() for part in name.split(".")):
        spec = importlib.util.find_spec(name) if "." not in name else None
        if spec is None or (spec.origin and Path(spec.origin).resolve() == path):
            known = _run(lambda: importlib.import_module(name), str(path))
    if known is not None:
        if known.__file__ and Path(known.__file__).resolve() == path:
            return known
        raise TargetError(
            f"{path.name}: there is another module called {name!r} already"
            f" ({known.__file__ or 'built in'}); rename the file"
        )
    return _run(lambda: import_file(name.replace("-", "_"), str(path)), str(path))


def _run(load: Any, where: str) -> ModuleType:
    try:
        module: ModuleType = load()
    except (Exception, SystemExit) as error:  # the user's code: anything may come
        raise TargetRaised(f"{where} raised when it was imported") from error
    return module


def load_failure(error: Exception) -> tuple[str, str]:
    """One line on models that cannot be loaded, and the traceback of the user's code if it is
    needed: a mistake that wherry has found needs only the place."""
    cause = error.__cause__
    if cause is None:
        return str(error), ""
    if isinstance(error, TargetRaised):
        if isinstance(cause, SyntaxError):
            source = "".join(traceback.format_exception_only(cause)).splitlines()[1:-1]
            place = _place(cause.filename, cause.lineno) if cause.lineno else str(error)
            return f"{place}: {type(cause).__name__}: {cause.msg}", "\n".join(source)
        frames = traceback.extract_tb(cause.__traceback__)
        outside = [one for one in frames if not one.filename.startswith(_NOT_THE_USERS)]
        if outside:
            # Of a mistake that wherry finds: where the model is. Else: where the target is left.
            found = outside[-1 if isinstance(cause, ConfigError) else 0]
            place = _place(found.filename, found.lineno)
            if isinstance(cause, ConfigError):
                return f"{place}: {cause}", ""
            what, *more = "".join(traceback.format_exception_only(cause)).splitlines()
            # At the top level of the target there is nothing between to show.
            text = "\n".join(more) if len(outside) == 1 else user_traceback(cause)
            return f"{place}: {what}{_missing(cause)}", text
    return str(error), user_traceback(cause)


def _place(file: str | None, line: int | None) -> str:
    return f"{(file or '').removeprefix(os.getcwd() + os.sep)}:{line}"


def _missing(error: BaseException) -> str:
    """How to install the package of a module that is not there, as the end of a sentence."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    top = error.name.partition(".")[0]
    if top in sys.modules or Path(top).exists() or Path(f"{top}.py").exists():
        return ""  # a part of something that is there
    return f"; install it: {sys.executable} -m pip install {PACKAGES.get(top, top)}"


#: Packages that are called otherwise than their module.
PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless",
    "faiss": "faiss-cpu", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip


def user_traceback(error: BaseException) -> str:
    """The error with its traceback from the first line of the user's code on."""
    lines = traceback.format_exception(error)
    notes: list[str] = getattr(error, "__notes__", [])
    if notes and isinstance(error, LoadFailed):
        # It was raised in a worker process, and came as text.
        lines = "\n".join(notes).splitlines(keepends=True)
    text = "".join(lines).rstrip()
    shortened = _OURS_AT_THE_END.sub("", _MACHINERY.sub(r"\1", text))
    _, _, first = shortened.partition("\n")
    if first.startswith("  File "):
        return shortened
    # None of the lines is the user's. The message of wherry's own errors is enough.
    return "" if first.startswith(_OWN_ERRORS) else text


def _frames_of(*prefixes: str) -> re.Pattern[str]:
    """The first frames of a traceback's text, as long as they lie in these places."""
    places = "|".join(map(re.escape, prefixes))
    return re.compile(
        rf'(\ATraceback \(most recent call last\):\n)(?:  File "(?:{places})[^\n]*\n(?:    .*\n)*)+'
    )


#: How a traceback's last line begins if the error is wherry's.
_OWN_ERRORS = "wherry."
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_NOT_THE_USERS = ("<frozen importlib", _PACKAGE, importlib.__file__)
_MACHINERY = _frames_of(*_NOT_THE_USERS)
#: The place in wherry that found a user's mistake is of no use; the mistake stands below.
_OURS_AT_THE_END = re.compile(
    rf'(?:  File "{re.escape(_PACKAGE)}[^\n]*\n(?:    .*\n)*)+(?={re.escape(_OWN_ERRORS)})'
)
