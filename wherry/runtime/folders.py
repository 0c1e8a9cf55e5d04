"""What do the model repositories hold of a name, and what may a client send in place of it?

Errors begin with Triton's words; the rest is what only its log says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wherry.repository import layout, upload
from wherry.repository.json_form import from_json, patched
from wherry.repository.layout import Fingerprint, Found
from wherry.repository.mirror import Mirror, is_remote
from wherry.repository.namespaces import key_of, name_of, split
from wherry.repository.problems import BadConfig
from wherry.repository.triton_config import TritonConfig
from wherry.repository.validate import problems_of
from wherry.values.errors import ConfigError, ModelNotFound, ModelNotReady, Tag

Config = TritonConfig | Mapping[str, Any] | str | bytes
Patch = Mapping[str, Any] | str | bytes


class RepositoryFolders:
    """Reads the models of some repositories. Every method reads files, and blocks."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        config_name: str | None = None,
        *,
        namespaces: bool = False,
    ) -> None:
        """`config_name` chooses among several configurations of a model. A folder may be the URL of
        one elsewhere (s3://BUCKET/PATH): ConfigError if what reads it is not installed. With
        `namespaces` each has names of its own, and a model's key stands for its name below."""
        self._urls = [str(folder) for folder in folders]
        self._has_namespaces = namespaces
        mirrors = {url: Mirror(url) for url in map(str, folders) if is_remote(url)}
        self._mirrors = list(mirrors.values())
        self.folders = [
            mirrors[str(folder)].folder if str(folder) in mirrors else os.path.abspath(folder)
            for folder in folders
        ]
        self._config_name = config_name

    def close(self) -> None:
        """Remove the copies of what lies elsewhere."""
        for mirror in self._mirrors:
            mirror.close()

    def check(self) -> None:
        """ConfigError if one of them is not there."""
        for mirror in self._mirrors:
            try:
                mirror.list()
            except OSError as error:
                why = error.__cause__ or "there is no such folder"
                raise ConfigError(f"model repository {mirror.url}: {why}") from error
        for folder in self.folders:
            if not os.path.isdir(folder):
                raise ConfigError(f"model repository {folder}: there is no such folder")

    def names(self) -> set[str]:
        """Names of all models. ModelNotReady if a repository cannot be read."""
        try:
            for mirror in self._mirrors:
                mirror.list()
            if not self._has_namespaces:
                return layout.names(self.folders)
            return {
                key_of(str(number), name)
                for number, folder in enumerate(self.folders, 1)
                for name in layout.names([folder])
            }
        except OSError as error:
            raise ModelNotReady(f"a model repository cannot be read: {error.strerror}") from None

    def look_at_all(self) -> list[Found]:
        """Every model as its files are, by name."""
        return [self.look(name) for name in sorted(self.names())]

    def called(self, name: str) -> list[str]:
        """The models that a caller means by a name: with namespaces all that have it, by their
        keys. A name that is nowhere is returned as it is."""
        if not self._has_namespaces:
            return [name]
        return sorted(key for key in self.names() if name in (key, name_of(key))) or [name]

    def member(self, name: str, namespace: str) -> str:
        """The model that an ensemble of this namespace means: that of its own repository, else the
        only one. ConfigError if there are several."""
        keys = self.called(name)
        own = key_of(namespace, name)
        if own in keys or len(keys) == 1:
            return own if own in keys else keys[0]
        numbers = ", ".join(split(key)[0] for key in keys)
        raise ConfigError(f"it is not available or ambiguous: the repositories {numbers} have it")

    def metric_labels(self, found: Found) -> dict[str, str]:
        """Labels of a model's metrics: the repository as the server was given it, with namespaces,
        and its own."""
        place = {"namespace": self._urls[int(found.namespace) - 1]} if found.namespace else {}
        return {**place, **{f"_{name}": tag for name, tag in found.config.metric_tags.items()}}

    def is_in_several(self, name: str) -> bool:
        """Whether more than one repository has it: then it is served from none."""
        return len(self._folders_of(name)) > 1

    def _place(self, name: str) -> tuple[str, str, Sequence[str]]:
        """Namespace and name of a model, and the repositories that may have it."""
        if not self._has_namespaces:
            return "", name, self.folders
        namespace, name = split(name)
        number = int(namespace) if namespace.isascii() and namespace.isdecimal() else 0
        return namespace, name, self.folders[number - 1 : number] if number else ()

    def _folders_of(self, name: str) -> list[str]:
        _, name, repositories = self._place(name)
        return layout.folders_of(name, repositories)

    def files_of(self, name: str) -> Fingerprint:
        """Fingerprint of the model's files: it changes when one of them does."""
        self._copy(name)
        folders = self._folders_of(name)
        return tuple(file for folder in folders for file in layout.fingerprint(folder))

    def look(self, name: str, config: Config | None = None, patch: Patch | None = None) -> Found:
        """Read a model, with `config` in place of its configuration, or with `patch` applied to it
        (RFC 7396). Raises ModelNotFound, or ConfigError if one of these is no configuration."""
        namespace, name, repositories = self._place(name)
        try:
            self._copy(name)
            found = layout.look(name, repositories, config_name=self._config_name)
            found = replace(found, namespace=namespace)
            if (config is None and patch is None) or found.in_several:
                return found
            changed = _config_of(config) if config is not None else found.config
            if patch is not None:
                changed = _checked(patched(changed, patch), "patch")
            _check_code(changed, found.config)
            return replace(layout.read(found.folder, config=changed), namespace=namespace)
        except FileNotFoundError:
            raise ModelNotFound(
                f"failed to load '{name}', failed to poll from model repository",
                tag=Tag.INTERNAL,
                more=": there is no model of this name",
            ) from None
        except BadConfig as error:
            raise cannot_load(name, error.problems) from None

    def _copy(self, name: str) -> None:
        """Have the files of a model that lies elsewhere. ModelNotReady if that fails."""
        try:
            for mirror in self._mirrors:
                mirror.copy(name_of(name))
        except OSError as error:
            raise ModelNotReady(f"a model repository cannot be read: {error.strerror}") from error


def uploaded(name: str, config: Config | None, files: Mapping[str, bytes], folder: str) -> Found:
    """Save the files that came with a load request in this folder, and read the model there."""
    if config is None:
        raise ConfigError(
            f"failed to load '{name}', failed to poll from model repository",
            tag=Tag.INTERNAL,
            more=": files need a config beside them, which says how to serve them",
        )
    if not layout.is_name(name):
        raise ConfigError(f"failed to load '{name}': it is no name of a model")
    root = os.path.join(folder, name)
    try:
        changed = _config_of(config)
        upload.save(files, root)
        return layout.read(root, config=changed)
    except upload.BadUpload as error:
        raise cannot_load(name, [str(error)]) from None
    except BadConfig as error:
        raise cannot_load(name, error.problems) from None


def cannot_load(name: str, problems: Sequence[str]) -> ConfigError:
    """Make the error for a model whose files have these problems."""
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
    """BadConfig if a configuration that a client sends has more code run than the model's own files
    say: another program, or what a pickle holds."""
    for name in ("EXECUTION_ENV_PATH", "ALLOW_PICKLE"):
        wanted = config.parameters.get(name)
        if wanted is not None and wanted != of_the_files.parameters.get(name):
            raise BadConfig([f"parameters: {name} may only be set in the model's own config.pbtxt"])
