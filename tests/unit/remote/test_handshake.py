"""Do a front and an owner speak only with a peer that has their token and their version?"""

from __future__ import annotations

import re

import msgspec
import pytest

from wherry.remote.handshake import (
    Challenge,
    FrontHandshake,
    HandshakeFailed,
    Identity,
    OwnerHandshake,
    Proof,
    SkewedVersions,
    Unwelcome,
    Welcome,
    WrongToken,
    parsed,
)
from wherry.workers.frames import Garbage

TOKEN = b"the secret of both"
NONCES = bytes(32), bytes(range(32))


def front(version: str = "1.2.3", token: bytes = TOKEN, protocol: int = 1) -> FrontHandshake:
    return FrontHandshake(Identity(protocol, version, "front"), token, NONCES[0])


def owner(version: str = "1.2.0", token: bytes = TOKEN, protocol: int = 1) -> OwnerHandshake:
    return OwnerHandshake(Identity(protocol, version, "owner"), token, NONCES[1])


def test_both_learn_who_the_other_is() -> None:
    asking, answering = front(), owner()
    proof = asking.prove(answering.challenge)
    assert proof.front.name == "front"
    assert asking.check(answering.answer(proof)).name == "owner"


def test_the_token_never_crosses() -> None:
    asking, answering = front(), owner()
    proof = asking.prove(answering.challenge)
    crossed = [answering.challenge, proof, answering.answer(proof)]
    assert not any(TOKEN in msgspec.msgpack.encode(one) for one in crossed)


@pytest.mark.parametrize("token", [b"another secret", b""])
def test_a_front_with_another_token_is_refused(token: bytes) -> None:
    answering = owner()
    with pytest.raises(WrongToken, match="the front has another cluster token, or none"):
        answering.answer(front(token=token).prove(answering.challenge))


def test_an_owner_without_the_token_is_left() -> None:
    asking, stranger = front(), owner(token=b"")
    asking.prove(stranger.challenge)
    with pytest.raises(WrongToken, match="the owner has another cluster token, or none"):
        asking.check(Welcome(bytes(32)))


def test_a_proof_is_of_one_connection() -> None:
    proof = front().prove(owner().challenge)
    later = OwnerHandshake(owner().challenge.owner, TOKEN, bytes(31) + b"x")
    with pytest.raises(WrongToken):
        later.answer(proof)


def test_a_proof_cannot_be_sent_back_as_a_welcome() -> None:
    asking = front()
    proof = asking.prove(owner().challenge)
    with pytest.raises(WrongToken):
        asking.check(Welcome(proof.mac))


def test_a_proof_for_one_name_is_none_for_another() -> None:
    answering = owner()
    proof = front().prove(answering.challenge)
    renamed = Proof(msgspec.structs.replace(proof.front, name="other"), proof.nonce, proof.mac)
    with pytest.raises(WrongToken):
        answering.answer(renamed)


@pytest.mark.parametrize(
    ("theirs", "protocol", "refused"),
    [("1.2.9", 1, False), ("1.3.0", 1, True), ("2.2.0", 1, True), ("1.2.0", 2, True)],
)
def test_both_refuse_another_minor_version_or_protocol_and_name_both(
    theirs: str, protocol: int, refused: bool
) -> None:
    asking, answering = front(), owner(theirs, protocol=protocol)
    proof = asking.prove(answering.challenge)
    if not refused:
        asking.check(answering.answer(proof))
        return
    both = rf"wherry 1\.2\.3 \(protocol 1\).*wherry {re.escape(theirs)} \(protocol {protocol}\)"
    with pytest.raises(SkewedVersions, match=both):
        answering.answer(proof)
    with pytest.raises(SkewedVersions, match=both):
        asking.check(Unwelcome("of no account"))


def test_a_newer_identity_with_more_fields_is_understood() -> None:
    answering = owner()
    encoded = msgspec.msgpack.encode(
        ["Challenge", [*msgspec.to_builtins(answering.challenge.owner), "new"], NONCES[1]]
    )
    asking = front()
    proof = asking.prove(parsed(encoded, Challenge))
    asking.check(answering.answer(proof))


@pytest.mark.parametrize("nonce", [b"", bytes(31), bytes(33)])
def test_a_number_of_another_length_is_refused(nonce: bytes) -> None:
    with pytest.raises(HandshakeFailed):
        front().prove(Challenge(owner().challenge.owner, nonce))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\xa9Challenge", b"\x91" * 3000, b"\x93" * 9])
def test_what_is_no_step_is_garbage(body: bytes) -> None:
    with pytest.raises(Garbage):
        parsed(body, Challenge)
