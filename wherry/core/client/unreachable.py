"""What should somebody look at whose client cannot reach a server?"""

from __future__ import annotations

import http.client
import ssl
from typing import Final

#: OpenSSL's codes of certificates (X509_V_ERR_...): expired, of another name or address.
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)


def advice(error: BaseException) -> str:
    """What to do about it, as the end of a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return "call it by a name that its certificate has"
        if error.verify_code == _EXPIRED:
            return "it needs a new certificate"
        return "--ssl-ca names a file with the certificates to trust"
    if isinstance(error, ssl.SSLError):
        return "does it speak TLS there, or http:// without?"
    if isinstance(error, http.client.RemoteDisconnected):
        return "does it speak another protocol there, such as https://?"
    return "is a server running there?"
