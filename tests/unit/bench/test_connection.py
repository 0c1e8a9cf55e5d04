"""Servers whose certificates nobody has heard of."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import wherry
from wherry.bench.load import LoadProcesses
from wherry.bench.plan import Closed, Plan
from wherry.bench.session import Served, measure
from wherry.bench.targets import Sending, find
from wherry.core.values.errors import ConfigError
from wherry.testing import local_server

CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key"
    " -out {name}.pem"
)


@wherry.model(name="echo", examples=[{"text": "a"}])
def echo(text: str) -> str:
    return text


def certificate(folder: Path, name: str, *words: str) -> Path:
    run(folder, *CERTIFICATE.format(name=name).split(), "-subj", f"/CN={name}", *words)
    return folder / f"{name}.pem"


def run(folder: Path, *words: str) -> None:
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


def served(pem: Path) -> Any:
    key = pem.with_suffix(".key")
    return local_server(echo, grpc_port=0, ssl_certfile=str(pem), ssl_keyfile=str(key))


def answered(url: str, **sending: Any) -> int:
    target = find(url, Sending(**sending))
    with LoadProcesses(1) as load:
        point = measure(Served(target, load), Plan(load=Closed(callers=2), requests=6)).point
    assert point.figures.failed == 0, point.samples
    return point.figures.ok


@pytest.mark.slow
def test_any_certificate_will_do_over_http_if_the_user_says_so(tmp_path: Path) -> None:
    with served(certificate(tmp_path, "its-own")) as server:
        with pytest.raises(wherry.WherryError):
            find(server.url, Sending())
        assert answered(server.url, insecure=True) == 6


@pytest.mark.slow
def test_a_certificate_that_is_given_is_trusted(tmp_path: Path) -> None:
    pem = certificate(tmp_path, "known", "-addext", "subjectAltName=IP:127.0.0.1")
    with served(pem) as server:
        for url in (server.url, f"grpcs://{server.grpc_url}"):
            assert answered(url, ssl_ca=str(pem)) == 6


def test_grpc_says_what_to_give_instead_of_any_certificate() -> None:
    with pytest.raises(ConfigError, match="the server's own as --ssl-ca"):
        find("grpcs://127.0.0.1:1", Sending(insecure=True))


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_file_without_certificates_is_named(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    for name in ("junk.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=f"--ssl-ca .*{name}"):
            find(f"{scheme}://127.0.0.1:1", Sending(ssl_ca=str(tmp_path / name)))
