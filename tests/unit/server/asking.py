"""A model to serve, and a client that sees the status of an answer."""

import urllib.request
from urllib.error import HTTPError

import wherry
from tests.fakes import TIMEOUT


@wherry.model(max_batch_size=8)
def upper(text: list[str]) -> list[str]:
    return [t.upper() for t in text]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
