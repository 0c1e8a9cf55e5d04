"""A server that is started as the manifests say serves."""

import json
import shutil
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.deploy.manifests import KUBERNETES, deployment, rendered, server_of
from wherry.testing import ServerProcess

pytestmark = pytest.mark.slow


def test_a_server_answers_clients_on_their_port_and_operators_on_theirs(tmp_path: Path) -> None:
    shutil.copy(KUBERNETES / "base/app.py", tmp_path)
    container = server_of(deployment(rendered("one-node")))
    command, *arguments = container["args"]
    assert command == "serve"
    variables = {one["name"]: one["value"] for one in container["env"]}
    env = variables | {name: "0" for name in variables if name.endswith("_PORT")}
    with ServerProcess(*arguments, env=env, cwd=str(tmp_path), ready_timeout=150) as server:
        body = json.dumps({"text": "le chat et la souris"}).encode()
        path = f"{server.url}/v2/models/language/generate"
        with urllib.request.urlopen(path, body, timeout=60) as answer:
            assert json.load(answer)["output"] == "fr"
        for private in ("/metrics", "/v2/repository/index"):
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(server.url + private, timeout=60)
            assert refused.value.code == 404
            refused.value.close()
