"""How do the files of a repository in S3, Google's or Azure's storage get to this machine?

    s3://BUCKET/PATH    s3://https://HOST:PORT/BUCKET/PATH    gs://BUCKET/PATH
    as://ACCOUNT/CONTAINER/PATH

and whatever else a package or fsspec reads. A model's files are copied when the model is looked at,
and again if they have changed; they are kept in a folder of this process.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from wherry.core.api import ConfigError, Plugins
from wherry.triton.repository.layout import is_name

log = logging.getLogger("wherry")

#: What to install, and a command that copies, by the scheme.
_REMEDIES: Final = {
    "s3": ("'wherry[s3]'", "aws s3 sync"),
    "gs": ("'wherry[gcs]'", "gcloud storage rsync -r"),
    "gcs": ("'wherry[gcs]'", "gcloud storage rsync -r"),
    "as": ("'wherry[azure]'", "azcopy sync"),
    "abfs": ("'wherry[azure]'", "azcopy sync"),
}
#: Members of Triton's file of credentials, in fsspec's words.
_CREDENTIALS: Final = {
    "key_id": "key", "secret_key": "secret", "session_token": "token", "region": "region_name",
    "profile": "profile", "account_str": "account_name", "account_key": "account_key",
}  # fmt: skip
_S3_HOST: Final = re.compile(r"s3://(https?://)?([\w.-]+:\d+)/(.+)")
_AZURE: Final = re.compile(r"as://([^/]+)/(.+)")

#: Members of a file's description, one of which changes with its content.
_MARKS: Final = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")


@runtime_checkable
class RepositorySource(Protocol):
    """A repository elsewhere, whose models become folders of this machine. Made of its URL. Any
    thread; all methods block, and raise OSError if it cannot be read."""

    @property
    def url(self) -> str: ...
    @property
    def folder(self) -> str: ...

    def list(self) -> None:
        """Make `folder` have a folder for each model, and none for removed ones."""

    def copy(self, name: str) -> None:
        """Copy the model's files; those that have not changed stay. A name comes from clients, and
        must not lead out of the folder."""

    def close(self) -> None:
        """Remove the folder."""


def is_remote(path: str) -> bool:
    return "://" in path


#: By the scheme of their URLs; fsspec reads all others.
SOURCES: Final = Plugins("source", RepositorySource, dict.fromkeys(_REMEDIES, f"{__name__}:Mirror"))


def source_of(url: str) -> RepositorySource:
    """The source for this URL. ConfigError if what it needs is not installed."""
    scheme = url.partition("://")[0]
    found: RepositorySource = SOURCES.make(scheme, url) if scheme in SOURCES else Mirror(url)
    return found


class Mirror:
    """A repository's models as folders of this machine. Any thread; all methods block.

    OSError if the repository cannot be read.
    """

    def __init__(self, url: str) -> None:
        """ConfigError if what reads such a URL is not installed."""
        self.url = url
        self._fs, self._root = _file_system(url)
        self.folder = tempfile.mkdtemp(prefix="wherry-repository-")
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._lock = threading.Lock()
        self._was_there = False
        #: The marks of the files that were copied, by model and by path.
        self._copied: dict[str, dict[str, str]] = {}

    def __repr__(self) -> str:
        return f"<Mirror {self.url}>"

    def list(self) -> None:
        """Make a folder for each model, empty until it is copied, and remove those of removed
        models."""
        with self._lock:
            try:
                entries = self._call_store("ls", self._root, detail=True)
            except FileNotFoundError:
                if not self._was_there:
                    raise
                entries = []  # a folder in such a storage is there as long as it has files
            self._was_there = True
            found = {
                name
                for one in entries
                if one["type"] == "directory" and is_name(name := _last(one["name"]))
            }
            for name in found:
                os.makedirs(os.path.join(self.folder, name), exist_ok=True)
            for name in set(os.listdir(self.folder)) - found:
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
                self._copied.pop(name, None)

    def copy(self, name: str) -> None:
        """Copy the model's files. Those that have not changed stay."""
        if not is_name(name):
            return
        with self._lock:
            root = f"{self._root}/{name}"
            try:
                listed: Mapping[str, Any] = self._call_store("find", root, detail=True)
            except FileNotFoundError:
                listed = {}
            found = {
                inside: (path, _mark(about))
                for path, about in listed.items()
                if _is_inside(inside := path.removeprefix(root).lstrip("/"))
            }
            known = self._copied.get(name, {})
            changed = {i: path for i, (path, mark) in found.items() if known.get(i) != mark}
            self._fetch(name, changed)
            for inside in known.keys() - found.keys():
                _delete(os.path.join(self.folder, name), inside)
            self._copied[name] = {inside: mark for inside, (_, mark) in found.items()}

    def close(self) -> None:
        self._remove()

    def _fetch(self, name: str, files: Mapping[str, str]) -> None:
        """Copy files beside their places and then into them: a running model keeps its own."""
        if not files:
            return
        targets = [os.path.join(self.folder, name, *i.split("/")) for i in files]
        for target in targets:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        self._call_store("get", list(files.values()), [f"{target}.part" for target in targets])
        for target in targets:
            os.replace(f"{target}.part", target)

    def _call_store(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            self._fs.invalidate_cache()
            return getattr(self._fs, method)(*args, **kwargs)
        except FileNotFoundError:
            raise
        except Exception as error:  # of the service's own library: of any type
            # Clients may see the OSError, and must not learn where the repository is.
            why = f"{type(error).__name__}: {error}"
            log.warning("model repository cannot be read", extra={"url": self.url, "why": why})
            raise OSError(errno.EIO, "its storage gives an error") from error


def _file_system(url: str) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    package, command = _REMEDIES.get(scheme, ("fsspec", ""))
    copy = f", or copy the folder: {command} {url} FOLDER" if command else ""
    where, options = _as_fsspec(url, os.environ)
    try:
        from fsspec.core import url_to_fs

        file_system, root = url_to_fs(where, use_listings_cache=False, **options)
    except ImportError as error:
        raise ConfigError(f"model repository {url}: pip install {package}{copy}") from error
    except ValueError as error:
        raise ConfigError(f"model repository {url}: {error}") from None
    if not rest.strip("/"):
        raise ConfigError(f"model repository {url}: it names no bucket or folder")
    return file_system, root.rstrip("/")


def _as_fsspec(url: str, environ: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """A URL as Triton writes it in fsspec's words, with the options of its file system."""
    options = _credentials(url, environ.get("TRITON_CLOUD_CREDENTIAL_PATH", ""))
    if match := _S3_HOST.fullmatch(url):
        endpoint = {"endpoint_url": f"{match[1] or 'http://'}{match[2]}"}
        options["client_kwargs"] = {**options.get("client_kwargs", {}), **endpoint}
        return f"s3://{match[3]}", options
    if match := _AZURE.fullmatch(url):
        key = environ.get("AZURE_STORAGE_KEY")
        account = {"account_name": match[1]} | ({"account_key": key} if key else {})
        return f"abfs://{match[2]}", {**account, **options}
    return url, options


def _credentials(url: str, path: str) -> dict[str, Any]:
    """The entry for a URL in Triton's file of credentials: that of the longest name (maybe "") with
    which the URL begins. ConfigError if it is not such a file."""
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file).get(url.partition("://")[0], {})
        names = [name for name in entries if url.startswith(name)]
        settings_found = entries[max(names, key=len)] if names else {}
        if isinstance(settings_found, str):  # Google's: another file
            return {"token": settings_found}
        credentials = {_CREDENTIALS[key]: value for key, value in settings_found.items() if value}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise ConfigError(f"TRITON_CLOUD_CREDENTIAL_PATH {path}: {why}") from None
    if (region := credentials.pop("region_name", None)) is not None:
        credentials["client_kwargs"] = {"region_name": region}
    return credentials


def _mark(about: Mapping[str, Any]) -> str:
    """A text that changes with the file."""
    marks = [str(about[name]) for name in _MARKS if name in about]
    return " ".join([str(about.get("size")), *marks])


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _is_inside(path: str) -> bool:
    """Whether a path of the storage, which may have any name, stays in its model's folder."""
    parts = path.split("/")
    return bool(path) and not any(part in ("", ".", "..") or "\0" in part for part in parts)


def _delete(folder: str, inside: str) -> None:
    """Remove a file, and the folders that are empty without it."""
    path = os.path.join(folder, *inside.split("/"))
    while path != folder:
        try:
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        except OSError:
            return
        path = os.path.dirname(path)
