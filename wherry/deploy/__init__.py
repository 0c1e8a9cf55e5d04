"""Models on Ray Serve, which places and restarts their replicas."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherry.deploy.on_ray_serve import ray_serve

__all__ = ["ray_serve"]


def __getattr__(name: str) -> Any:
    if name != "ray_serve":
        raise AttributeError(f"module 'wherry.deploy' has no attribute {name!r}")
    from wherry.deploy import on_ray_serve

    return on_ray_serve.ray_serve
