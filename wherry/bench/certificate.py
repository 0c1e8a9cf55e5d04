"""Which certificates does a load test trust?"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from wherry.core.api import ConfigError

#: Seconds for a server to show its certificate.
TLS_TIMEOUT = 5.0


class Shown(msgspec.Struct, frozen=True):
    """The certificate that a server has shown, and a name that it is for."""

    pem: str
    name: str


def tls_context(ssl_ca: str | None, *, insecure: bool) -> ssl.SSLContext:
    """A context for a client. ConfigError if `ssl_ca` has no certificates."""
    try:
        context = ssl.create_default_context(cafile=ssl_ca)
    except OSError as error:
        raise ConfigError(f"--ssl-ca {ssl_ca}: {error}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def shown_by(host: str, port: int) -> Shown:
    """Ask the server for its certificate: for grpcio, which cannot accept any, to trust it alone.

    OSError if it shows none, ConfigError if no client could trust it.
    """
    pem = ssl.get_server_certificate((host, port), timeout=TLS_TIMEOUT)
    # Once more, as Python reads a certificate only if it trusts it.
    context = ssl.create_default_context(cadata=pem)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        with (
            socket.create_connection((host, port), TLS_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            certificate = connection.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"the certificate of {host}:{port} cannot be trusted even alone:"
            f" {error.verify_message}; give the server another one"
        ) from None
    return Shown(pem, _name_in(certificate) or host)


def _name_in(certificate: Mapping[str, Any]) -> str:
    """The name to compare with the host: the first alternative one, else the common one."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [
        *(value for _, value in certificate.get("subjectAltName", ())),
        *(value for kind, value in subject if kind == "commonName"),
    ]
    return names[0] if names else ""
