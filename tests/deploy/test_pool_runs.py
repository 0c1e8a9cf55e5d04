"""An owner and a front that are started as the manifests say find each other, and serve."""

import json
import re
import shutil
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.deploy.manifests import KUBERNETES, Object, deployment, rendered, server_of
from wherry.testing import ServerProcess

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-this-test"


def _server(container: Object, folder: Path, *instead: str) -> ServerProcess:
    """The container's program with its arguments and variables, the later ones on free ports."""
    command, *arguments = container["args"]
    assert command == "serve"
    variables = {one["name"]: one.get("value", TOKEN) for one in container["env"]}
    env = variables | {name: "0" for name in variables if name.endswith("_PORT")}
    return ServerProcess(*arguments, *instead, env=env, cwd=str(folder), ready_timeout=150)


def test_a_request_to_a_front_is_answered_by_an_owner(tmp_path: Path) -> None:
    shutil.copy(KUBERNETES / "base/app.py", tmp_path)
    owner, front = (server_of(deployment(rendered("one-node"), one)) for one in ("owner", "front"))
    (tmp_path / "front").mkdir()
    with _server(owner, tmp_path, "--rows-host=127.0.0.1", "--rows-port=0") as owning:
        found = re.search(r"rows=127.0.0.1:(\d+)", owning.log)
        assert found, owning.log
        named = f"--replicas=dns:localhost:{found[1]}"
        with _server(front, tmp_path / "front", named) as server:
            _check_front(server.url)


def _check_front(url: str) -> None:
    body = json.dumps({"text": "le chat et la souris"}).encode()
    path = f"{url}/v2/models/language/generate"
    with urllib.request.urlopen(path, body, timeout=60) as answer:
        assert json.load(answer)["output"] == "fr"
    for private in ("/metrics", "/v2/repository/index"):
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(url + private, timeout=60)
        assert refused.value.code == 404
        refused.value.close()
