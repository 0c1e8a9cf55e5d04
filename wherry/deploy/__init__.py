"""Models on more than one machine, on engines that place and restart processes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherry.deploy.on_ray import Ray
    from wherry.deploy.on_ray_serve import ray_serve

__all__ = ["Ray", "ray_serve"]

_HOMES = {"Ray": "wherry.deploy.on_ray", "ray_serve": "wherry.deploy.on_ray_serve"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wherry.deploy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
