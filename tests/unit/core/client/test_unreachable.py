"""wherry.core.client.unreachable: a client that does not get through is told what to look at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import wherry
from wherry.server.cli import main
from wherry.testing import local_server


@wherry.model
def echo(text: str) -> str:
    return text


def certificate(folder: Path, names: str) -> Path:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += f" -keyout key.pem -out cert.pem -subj /CN=x -addext subjectAltName={names}"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


COMMANDS = [["models", "--url"], ["explain", "echo", "--url"], ["bench"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_certificate_that_is_not_trusted_is_told_with_the_flag_that_trusts_it(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pem = str(certificate(tmp_path, "DNS:other.test"))
    key = str(tmp_path / "key.pem")
    with local_server(echo, ssl_certfile=pem, ssl_keyfile=key) as server:
        url = server.url
        assert main([*command, url]) != 0
        assert "--ssl-ca names a file with the certificates to trust" in capsys.readouterr().err
        assert main([*command, url, "--ssl-ca", pem]) != 0
        assert "call it by a name that its certificate has" in capsys.readouterr().err
        assert main([*command, url.replace("https", "http")]) != 0
        assert "another protocol there, such as https://?" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_https_where_none_is_spoken_is_told(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with local_server(echo) as server:
        url = server.url
        assert main([*command, url.replace("http", "https")]) != 0
    assert "does it speak TLS there, or http:// without?" in capsys.readouterr().err
