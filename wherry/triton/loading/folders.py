"""What do the model repositories hold of a name, and what may a client send in place of it?

Errors begin with Triton's words; the rest is what only Triton's log contains. No file that a client
sends is written before the names of all are checked; their total size is bounded by that of the
request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wherry.core.api import ConfigError, ModelNotFound, ModelNotReady, Tag
from wherry.triton.repository import layout
from wherry.triton.repository.json_form import from_json, patched
from wherry.triton.repository.layout import Fingerprint, Found, is_name
from wherry.triton.repository.mirror import is_remote, source_of
from wherry.triton.repository.schema import BadConfig
from wherry.triton.repository.triton_config import TritonConfig
from wherry.triton.repository.validate import problems_of

MAX_FILES: Final = 1024
MAX_PATH_CHARS: Final = 512
MAX_DEPTH: Final = 16


class BadUpload(Exception):
    """Raised for a file whose name leads elsewhere or cannot be written, and for too many files."""


def save(files: Mapping[str, bytes], root: str) -> None:
    if len(files) > MAX_FILES:
        raise BadUpload(f"{len(files)} files were sent, of at most {MAX_FILES}")
    places = {path: os.path.join(root, *_parts(path)) for path in files}
    for path, content in files.items():
        try:
            os.makedirs(os.path.dirname(places[path]), exist_ok=True)
            with open(places[path], "xb") as file:
                file.write(content)
        except OSError as error:
            raise BadUpload(f"{path!r} cannot be written: {error.strerror}") from None


def _parts(path: str) -> list[str]:
    if len(path) > MAX_PATH_CHARS:
        raise BadUpload(f"a file's path has {len(path)} characters, of at most {MAX_PATH_CHARS}")
    # Triton joins the name to the folder's, so that "file:/1/model.py" is the same file.
    parts = path.removeprefix("/").split("/")
    if len(parts) > MAX_DEPTH or not all(is_name(part) and _can_be_written(part) for part in parts):
        raise BadUpload(f"{path!r} is not a file of its folder")
    return parts


def _can_be_written(name: str) -> bool:
    """Whether the file system takes this name: JSON may hold lone surrogates."""
    return name.isprintable() and len(os.fsencode(name)) <= 255


Config = TritonConfig | Mapping[str, Any] | str | bytes
Patch = Mapping[str, Any] | str | bytes


class RepositoryFolders:
    """Reads the models of some repositories. Every method reads files, and blocks."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        config_name: str | None = None,
    ) -> None:
        """`config_name` chooses among several configurations of a model. A folder may be the URL of
        one elsewhere (s3://BUCKET/PATH): ConfigError if what reads it is not installed."""
        mirrors = {url: source_of(url) for url in map(str, folders) if is_remote(url)}
        self._mirrors = list(mirrors.values())
        self.folders = [
            mirrors[str(folder)].folder if str(folder) in mirrors else os.path.abspath(folder)
            for folder in folders
        ]
        self._config_name = config_name

    def close(self) -> None:
        for mirror in self._mirrors:
            mirror.close()

    def check(self) -> None:
        """ConfigError if one of them is not there."""
        for mirror in self._mirrors:
            try:
                mirror.list()
            except OSError as error:
                why = error.__cause__ or "no such folder"
                raise ConfigError(f"model repository {mirror.url}: {why}") from error
        for folder in self.folders:
            if not os.path.isdir(folder):
                raise ConfigError(f"model repository {folder}: no such folder")

    def names(self) -> set[str]:
        """Names of all models. ModelNotReady if a repository cannot be read."""
        try:
            for mirror in self._mirrors:
                mirror.list()
            return layout.names(self.folders)
        except OSError as error:
            raise ModelNotReady(f"a model repository cannot be read: {error.strerror}") from None

    def look_at_all(self) -> list[Found]:
        return [self.look(name) for name in sorted(self.names())]

    def is_in_several(self, name: str) -> bool:
        """Whether more than one repository has it: then it is served from none."""
        return len(layout.folders_of(name, self.folders)) > 1

    def files_of(self, name: str) -> Fingerprint:
        """Fingerprint of the model's files: it changes when one of them does."""
        self._copy(name)
        folders = layout.folders_of(name, self.folders)
        return tuple(file for folder in folders for file in layout.fingerprint(folder))

    def look(self, name: str, config: Config | None = None, patch: Patch | None = None) -> Found:
        """Read a model, with `config` in place of its configuration, or with `patch` applied to it
        (RFC 7396). Raises ModelNotFound, or ConfigError if one of these is not a configuration."""
        try:
            self._copy(name)
            found = layout.look(name, self.folders, config_name=self._config_name)
            if (config is None and patch is None) or found.in_several:
                return found
            changed = _config_of(config) if config is not None else found.config
            if patch is not None:
                changed = _checked(patched(changed, patch), "patch")
            _check_code(changed, found.config)
            return layout.read(found.folder, config=changed)
        except FileNotFoundError:
            raise ModelNotFound(
                f"failed to load '{name}', failed to poll from model repository",
                tag=Tag.INTERNAL,
                more=": no model has this name",
            ) from None
        except BadConfig as error:
            raise cannot_load(name, error.problems) from None

    def _copy(self, name: str) -> None:
        """Copy the files of a model that lies elsewhere. ModelNotReady if that fails."""
        try:
            for mirror in self._mirrors:
                mirror.copy(name)
        except OSError as error:
            raise ModelNotReady(f"a model repository cannot be read: {error.strerror}") from error


def uploaded(name: str, config: Config | None, files: Mapping[str, bytes], folder: str) -> Found:
    if config is None:
        raise ConfigError(
            f"failed to load '{name}', failed to poll from model repository",
            tag=Tag.INTERNAL,
            more=": files need a config beside them that describes how to serve them",
        )
    if not layout.is_name(name):
        raise ConfigError(f"failed to load '{name}': it is not a name of a model")
    root = os.path.join(folder, name)
    try:
        changed = _config_of(config)
        save(files, root)
        return layout.read(root, config=changed)
    except BadUpload as error:
        raise cannot_load(name, [str(error)]) from None
    except BadConfig as error:
        raise cannot_load(name, error.problems) from None


def cannot_load(name: str, problems: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"failed to load '{name}', failed to poll from model repository",
        tag=Tag.INTERNAL,
        more=f": {'; '.join(problems)}",
    )


def _config_of(config: Config) -> TritonConfig:
    if isinstance(config, TritonConfig):
        return _checked(config, "config")
    return _checked(from_json(config), "config")


def _checked(config: TritonConfig, what: str) -> TritonConfig:
    """Raise BadConfig if the configuration contradicts itself, as pbtxt.parse does."""
    if problems := list(problems_of(config)):
        raise BadConfig(f"{what}: {problem}" for problem in problems)
    return config


def _check_code(config: TritonConfig, of_the_files: TritonConfig) -> None:
    """BadConfig if a configuration from a client changes the program that the model's files run."""
    name = "EXECUTION_ENV_PATH"
    value = config.parameters.get(name)
    if value is not None and value != of_the_files.parameters.get(name):
        raise BadConfig([f"parameters: {name} may only be set in the model's own config.pbtxt"])
