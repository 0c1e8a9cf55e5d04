"""A program with a local Ray and wherry in Ray Serve, for test_ray_serve.py, which starts it.

It says on its standard output, as one line of JSON each, what its handles were answered, and after
each line of its standard input what has become of the application; it ends with its input.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayTaskError

from wherry.deploy import ray_serve

HERE = Path(__file__).parent


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201 - the test reads it


def main(port: int) -> None:
    # Its sockets lie there: their paths may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-")
    ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, object_store_memory=80 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    small = {"ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_wait_loop_s": 0.1}
    handle = serve.run(ray_serve(str(HERE / "ray_models.py"), **small), route_prefix="/models")
    answer = handle.infer.remote("upper", text="good").result()
    try:
        failure = handle.infer.remote("upper", text="bad").result()
    except RayTaskError as error:
        failure = [type(error.cause).__name__, str(error.cause)]
    pieces = handle.options(stream=True).stream.remote(
        "parrot", messages=[{"role": "user", "content": "one two"}]
    )
    say(answer=answer, failure=failure, pieces=list(pieces))
    for line in sys.stdin:
        if line == "broken\n":
            broken = ray_serve(str(HERE / "ray_broken.py"), max_constructor_retry_count=1, **small)
            try:
                serve.run(broken, name="broken", route_prefix="/broken")
            except RuntimeError:
                status = serve.status().applications["broken"]
                say(broken=status.deployments["wherry"].message)
        elif line == "delete\n":
            serve.delete("default")
            say(deleted=True)
        elif line == "page\n":
            sys.path.insert(0, "")
            page = importlib.import_module("serve_app").app
            language = serve.run(page, name="page", route_prefix="/page")
            say(language=language.infer.remote("language", text="der Hund").result())
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
