"""Start the tritonserver of the PyPI package nvidia-pytriton: no container, no GPU.

    ENVIRONMENT/bin/python benchmarks/peers/tritonserver.py REPOSITORY HTTP GRPC METRICS

The last three are ports. It is run by the Python of an environment that holds nvidia-pytriton and
numpy below 2, and the models run in the same Python. This process becomes the server.
"""

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    repository, http, grpc, metrics = sys.argv[1:]
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SystemExit(f"{sys.executable} has no package nvidia-pytriton")
    packages = Path(spec.origin).parent.parent
    triton = packages / "pytriton" / "tritonserver"
    libraries = [packages / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
    }
    stub = triton / "python_backend_stubs" / f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = [
        str(triton / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={metrics}",
        f"--backend-directory={_backends(triton, stub)}",
        "--allow-gpu-metrics=false",
    ]
    os.execve(command[0], command, environment)


def _backends(triton: Path, stub: Path) -> Path:
    """A folder with the Python backend and the stub of this Python, made once beside Triton."""
    folder = triton / "backends_with_stub"
    backend = folder / "python"
    backend.mkdir(parents=True, exist_ok=True)
    for file in [*(triton / "backends" / "python").iterdir(), *stub.iterdir()]:
        link = backend / file.name
        if not link.exists():
            link.symlink_to(file)
    return folder


if __name__ == "__main__":
    main()
