"""How do a model's torch weights leave their device, and come back?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any


def move_weights(values: Iterable[Any], device: str) -> list[Any]:
    """Move the tensors among these, and in modules, lists, tuples and dicts among them, to "cpu",
    into pinned memory, or to a GPU. Returns those that were elsewhere.

    Each tensor stays the object that it is; those that share memory still do.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    to, pins = torch.device(device), device == "cpu" and torch.cuda.is_available()
    moved: dict[int, tuple[Any, Any]] = {}
    tensors = [tensor for tensor in _tensors(torch, values, set()) if is_elsewhere(tensor, to)]
    with torch.no_grad():
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in moved:
                source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                target = torch.empty(source.shape, dtype=torch.uint8, device=to, pin_memory=pins)
                # The source is kept until all are moved, so that no other has its address.
                moved[storage.data_ptr()] = source, target.copy_(source, non_blocking=True)
            bytes_there = moved[storage.data_ptr()][1].untyped_storage()
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=to).set_(
                bytes_there, tensor.storage_offset(), tensor.shape, tensor.stride()
            )
    if tensors and torch.cuda.is_available():
        torch.cuda.synchronize()
        moved.clear()
        torch.cuda.empty_cache()
    return tensors


def is_elsewhere(tensor: Any, device: Any) -> bool:
    return bool(tensor.device != device)


def _tensors(torch: Any, values: Iterable[Any], seen: set[int]) -> Iterator[Any]:
    for value in values:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, torch.nn.Module):
            yield from _tensors(torch, (*value.parameters(), *value.buffers()), seen)
        elif isinstance(value, dict):
            yield from _tensors(torch, value.values(), seen)
        elif isinstance(value, list | tuple):
            yield from _tensors(torch, value, seen)
