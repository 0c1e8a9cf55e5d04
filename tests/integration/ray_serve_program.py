"""A program with a local Ray and wherry in Ray Serve, for test_ray_serve.py, which starts it.

It says on its standard output, as one line of JSON each, what its handles were answered, and after
each line of its standard input what has become of the application; it ends with its input.
"""

import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayTaskError

from wherry.deploy import ray_serve

HERE = Path(__file__).parent


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201 - the test reads it


def scale(small: dict[str, Any]) -> None:
    """An application that is busy and gets a replica more, and then is not, and loses it."""
    every = {"metrics_interval_s": 0.1, "look_back_period_s": 1.0}
    delays = {"upscale_delay_s": 0.1, "downscale_delay_s": 0.1}
    scaling = {"min_replicas": 1, "max_replicas": 3, **every, **delays}
    scaled = ray_serve(str(HERE / "ray_models.py"), autoscaling_config=scaling, **small)
    handle = serve.run(scaled, name="scaled", route_prefix="/scaled")
    held = [handle.infer.remote("held", text=f"{number}") for number in range(8)]
    say(up=replicas(2))
    say(answers=[one.result() for one in held])
    say(down=replicas(1))
    serve.delete("scaled")


def replicas(number: int) -> int:
    """Wait until so many of them run, which no event tells."""
    while True:
        running = serve.status().applications["scaled"].deployments["wherry"].replica_states
        if running == {"RUNNING": number}:
            return number
        time.sleep(0.1)


def main(port: int) -> None:
    # Its sockets lie there: their paths may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-")
    ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, object_store_memory=80 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    small: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": 0.1},
        "graceful_shutdown_wait_loop_s": 0.1,
    }
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
        elif line == "one at once\n":
            one = ray_serve(str(HERE / "ray_models.py"), max_num_models_per_replica=1, **small)
            serve.run(one, name="one", route_prefix="/one")
            say(one="is there")
        elif line == "scale\n":
            scale(small)
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
