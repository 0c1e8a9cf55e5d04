"""How do clients load and unload an adapter (LoRA) while its model is served, as vLLM has it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final, TypeVar

import msgspec

from wherry.core.api import AccessDenied, Buffer, VariantStore
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.models import AbleModels
from wherry.llm.openai.reading import NotDone, decoded
from wherry.server.api import ANY_TEXT, TEXT, Operation, Route, json_of

#: It changes what the server has: who may load models may load adapters.
GROUP: Final = "model-repository"


class LoadAdapter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter."""

    not_done: ClassVar[Mapping[str, NotDone]] = {"is_3d_lora_weight": NotDone((False,))}

    lora_name: str
    #: A folder on the server.
    lora_path: str
    #: Whether it may take the place of one of the same name.
    load_inplace: bool = False
    #: The model that it is for; None: the only one that takes adapters.
    base_model_name: str | None = None


class UnloadAdapter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
    #: vLLM's number of it, which is not needed.
    lora_int_id: int | None = None
    base_model_name: str | None = None


AdapterRequest = TypeVar("AdapterRequest", LoadAdapter, UnloadAdapter)


def adapter_routes(models: AbleModels) -> dict[str, Route]:
    """The two routes of one server; its model control says whether they are open."""
    return {
        "/v1/load_lora_adapter": _route(models, "Load", LoadAdapter, _load, "added"),
        "/v1/unload_lora_adapter": _route(models, "Unload", UnloadAdapter, _unload, "removed"),
    }


def _route(
    models: AbleModels,
    verb: str,
    kind: type[AdapterRequest],
    change: Callable[[VariantStore, AdapterRequest], None],
    done: str,
) -> Route:
    """Have the model's adapters changed by another thread: it looks at files."""

    def read(request: ClientRequest, body: Buffer) -> AdapterRequest:
        return decoded(body, kind, request.ignored)

    def start(request: ClientRequest, adapter: AdapterRequest) -> None:
        if models.entry.control.mode != "explicit":
            raise AccessDenied(
                "adapters are loaded and unloaded by clients only in the model control mode"
                " 'explicit': start the server with --model-control-mode explicit"
            )
        store = models.store(adapter.base_model_name, adapter.lora_name if verb == "Load" else "")

        def tell(_: None) -> None:
            message = f"Success: LoRA adapter '{adapter.lora_name}' {done} successfully."
            request.respond(message.encode(), "text/plain; charset=utf-8")

        request.off_loop(lambda: change(store, adapter), tell, reads=False)

    operation = Operation(
        summary=f"{verb} an adapter (LoRA)",
        description="In the model control mode `explicit` only.",
        takes=json_of(kind),
        gives={TEXT: ANY_TEXT},
        errors=(400, 403, 404, 503),
    )
    return Route(
        {"POST": lambda exchange: ClientRequest(models.entry, exchange).read(read, start)},
        GROUP,
        operations={"POST": operation},
        needs=("adapters",),
    )


def _load(store: VariantStore, adapter: LoadAdapter) -> None:
    if not adapter.lora_path or "\0" in adapter.lora_path:
        raise BadField("lora_path", "must be the path of a folder on the server")
    store.add(adapter.lora_name, Path(adapter.lora_path), replace=adapter.load_inplace)


def _unload(store: VariantStore, adapter: UnloadAdapter) -> None:
    store.remove(adapter.lora_name)
