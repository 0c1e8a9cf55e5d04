"""How do a front and an owner on two machines make sure of each other before the first message?

    owner -> front   Challenge   who it is, and a number used once
    front -> owner   Proof       who it is, a number used once, and a MAC over all of it
    owner -> front   Welcome     its own MAC; or Unwelcome

The MACs are HMAC-SHA256 with the token, which never crosses. Each covers both numbers, both
identities and the side that made it, so neither can be replayed or sent back. Then come messages
(`remote.messages`); nothing before that is longer than `MOST_BYTES`.
"""

from __future__ import annotations

import hmac
from typing import Any, Final, TypeVar

import msgspec

from wherry.remote.messages import PROTOCOL
from wherry.workers.frames import Garbage

#: Bytes of the body of a frame of the handshake.
MOST_BYTES: Final = 4096
NONCE_BYTES: Final = 32

_OWNER, _FRONT = b"owner", b"front"


class HandshakeFailed(Exception):
    """The other side is not to be spoken to. The text names the remedy, and no secret."""


class WrongToken(HandshakeFailed):
    """The other side has another token, or none."""


class SkewedVersions(HandshakeFailed):
    """The other side's version is too far from this one."""


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """One side of a link. New versions may add fields at the end, but change none."""

    protocol: int
    version: str
    #: For people: host and port of an owner, host and process of a front.
    name: str
    #: Bytes of the largest message that it takes.
    most_bytes: int = 0


class Challenge(msgspec.Struct, array_like=True, tag=True):
    owner: Identity
    nonce: bytes


class Proof(msgspec.Struct, array_like=True, tag=True):
    front: Identity
    nonce: bytes
    mac: bytes


class Welcome(msgspec.Struct, array_like=True, tag=True):
    mac: bytes


class Unwelcome(msgspec.Struct, array_like=True, tag=True):
    why: str


Step = TypeVar("Step", Challenge, Proof, Welcome | Unwelcome)


class OwnerHandshake:
    """The owner's side for one connection. Pure; `nonce` must be random."""

    def __init__(self, identity: Identity, token: bytes, nonce: bytes) -> None:
        self.challenge = Challenge(identity, nonce)
        self._token = token

    def answer(self, proof: Proof) -> Welcome:
        """The front's proof holds: what to send it. Raises HandshakeFailed."""
        challenge = self.challenge
        check_nonce(proof.nonce)
        expected = _mac(self._token, _FRONT, challenge, proof.front, proof.nonce)
        if not hmac.compare_digest(expected, proof.mac):
            raise WrongToken("the front has another cluster token, or none")
        check_versions(front=proof.front, owner=challenge.owner)
        return Welcome(_mac(self._token, _OWNER, challenge, proof.front, proof.nonce))


class FrontHandshake:
    """The front's side for one connection. Pure; `nonce` must be random."""

    def __init__(self, identity: Identity, token: bytes, nonce: bytes) -> None:
        self._identity = identity
        self._token = token
        self._nonce = nonce
        self._challenge: Challenge | None = None

    def prove(self, challenge: Challenge) -> Proof:
        """What to send the owner first. Raises HandshakeFailed."""
        check_nonce(challenge.nonce)
        self._challenge = challenge
        mac = _mac(self._token, _FRONT, challenge, self._identity, self._nonce)
        return Proof(self._identity, self._nonce, mac)

    def check(self, answer: Welcome | Unwelcome) -> Identity:
        """The owner, if its answer holds. Raises HandshakeFailed."""
        challenge = self._challenge
        assert challenge is not None
        check_versions(front=self._identity, owner=challenge.owner)
        if isinstance(answer, Unwelcome):
            raise HandshakeFailed(f"the owner refuses: {answer.why}")
        expected = _mac(self._token, _OWNER, challenge, self._identity, self._nonce)
        if not hmac.compare_digest(expected, answer.mac):
            raise WrongToken("the owner has another cluster token, or none")
        return challenge.owner


def check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise HandshakeFailed("a number of another length")


def check_versions(*, front: Identity, owner: Identity) -> None:
    """Raise SkewedVersions unless both speak one protocol and are of one minor version."""
    ours = front.protocol, _minor(front.version)
    if ours != (owner.protocol, _minor(owner.version)):
        raise SkewedVersions(
            f"the front is wherry {front.version} (protocol {front.protocol}), the owner is wherry"
            f" {owner.version} (protocol {owner.protocol}): run the same minor version of both"
        )


def parsed(body: bytes, kind: type[Step] | Any) -> Any:
    """The step of a handshake in the body of a frame. Raises Garbage."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Garbage(str(error)) from None


def identity(version: str, name: str, *, most_bytes: int) -> Identity:
    return Identity(PROTOCOL, version[:64], name[:256], most_bytes)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _mac(token: bytes, side: bytes, challenge: Challenge, front: Identity, nonce: bytes) -> bytes:
    said = side, _covered(challenge.owner), challenge.nonce, _covered(front), nonce
    return hmac.digest(token, msgspec.msgpack.encode(said), "sha256")


def _covered(one: Identity) -> tuple[int, str, str, int]:
    """What every version knows, so that skew is not mistaken for another token."""
    return one.protocol, one.version, one.name, one.most_bytes
