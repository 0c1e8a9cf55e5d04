"""server/watched_files.py: keys and certificates that change while they are used."""

import logging
import os
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.server import watched_files
from wherry.server.access.api_keys import ApiKeys, keys_of
from wherry.server.watched_files import WatchedFiles, watched_context

ONE, TWO = 20 * "1", 20 * "2"


def make_certificate(folder: Path, name: str, kind: str = "ec") -> tuple[str, str]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    of = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"] if kind == "ec" else ["rsa:2048"]
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", *of, "-subj", f"/CN={name}",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "old")
    make_certificate(folder, "new", "rsa")
    return folder


def shown(context: ssl.SSLContext, server_hostname: str | None = "localhost") -> bytes | None:
    """The certificate that a handshake with a server of this context shows."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(to_client, to_server, server_hostname=server_hostname)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for one in (client, server) * 2:
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return client.getpeercert(binary_form=True)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def put(path: Path, text: str) -> None:
    """As an editor does: in another file's place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(path)


def watched_keys(path: Path) -> tuple[ApiKeys, WatchedFiles]:
    keys, watched = ApiKeys(), WatchedFiles()
    watched.read([str(path)], lambda: keys.use(["inline: " + 20 * "i", *keys_of(path)]))
    return keys, watched


def knows(keys: ApiKeys, *secrets: str) -> list[bool]:
    return [keys.name_of({"x-api-key": one}) is not None for one in secrets]


def test_keys_are_those_of_the_file_as_it_is(tmp_path: Path) -> None:
    put(tmp_path / "keys", ONE)
    keys, watched = watched_keys(tmp_path / "keys")
    assert knows(keys, ONE, TWO, 20 * "i") == [True, False, True]
    watched.look()
    put(tmp_path / "keys", TWO)
    assert knows(keys, ONE, TWO) == [True, False]
    watched.look()
    assert knows(keys, ONE, TWO, 20 * "i") == [False, True, True]


@pytest.mark.parametrize("text", ["", "# none\n", "short", f"{ONE}\n{ONE}", "a: b: c", None])
def test_a_file_of_no_use_changes_nothing_and_is_told_once(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    put(path, ONE)
    keys, watched = watched_keys(path)
    if text is None:
        path.unlink()
    else:
        put(path, text)
    watched.look()
    assert not caplog.records  # it may be half written
    for _ in range(3):
        watched.look()
    assert knows(keys, ONE, "") == [True, False]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(path) in vars(record)["file"]
    put(path, TWO)
    watched.look()
    assert knows(keys, ONE, TWO) == [False, True]


def test_a_file_is_not_read_while_it_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    put(path, ONE)
    read: list[str] = []
    watched = WatchedFiles()
    watched.read([str(path)], lambda: read.append(path.read_text()))
    for _ in range(3):
        watched.look()
    assert read == [ONE]
    # As Kubernetes does: the name leads to another file of the same size and time.
    other = tmp_path / "other"
    put(other, TWO)
    of = path.stat()
    path.unlink()
    path.symlink_to(other)
    os.utime(other, ns=(of.st_atime_ns, of.st_mtime_ns))
    watched.look()
    assert read == [ONE, TWO]


def test_each_handshake_is_with_the_certificate_of_its_time(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "cert.key"

    def use(name: str) -> None:
        put(cert, (certificates / f"{name}.pem").read_text())
        watched.look()  # between the two: they do not fit
        put(key, (certificates / f"{name}.key").read_text())
        watched.look()

    watched = WatchedFiles()
    put(cert, (certificates / "old.pem").read_text())
    put(key, (certificates / "old.key").read_text())
    files = str(cert), str(key), None
    contexts = [watched_context(watched, files), watched_context(watched, files, "h2")]
    old, new = (der(certificates / f"{name}.pem") for name in ("old", "new"))
    for name, now in (("old", old), ("new", new), ("old", old)):
        use(name)
        for context in contexts:
            assert shown(context) == now
            assert shown(context, None) == now
    put(key, "-----BEGIN PRIVATE KEY-----\n")
    for _ in range(3):
        watched.look()
    assert shown(contexts[0]) == old
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(key) in vars(errors[0])["file"]


def test_a_first_reading_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TLS from nowhere"):
        watched_context(WatchedFiles(), ("nowhere", None, None))


def test_a_thread_looks_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "INTERVAL", 0.01)
    put(tmp_path / "keys", ONE)
    keys, watched = watched_keys(tmp_path / "keys")
    watched.start()
    put(tmp_path / "keys", TWO)
    ends_at = time.monotonic() + 5
    while knows(keys, ONE) == [True] and time.monotonic() < ends_at:
        time.sleep(0.01)
    watched.close()
    assert knows(keys, ONE, TWO) == [False, True]
