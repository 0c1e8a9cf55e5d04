"""Do tensors pass from one model to the next as they are, and does nobody see what another one
writes into them? On the CPU: where a tensor's memory is tells whether it was copied."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, Call, until
from tests.unit.triton.test_ensemble import ensemble, step
from wherry.core.instances.thread import ThreadInstance
from wherry.core.values import tensors
from wherry.core.values.errors import BadModelOutput, InvalidRequest
from wherry.core.values.execution import Failure
from wherry.core.values.request import concatenate
from wherry.triton.backends.torch import TorchModel
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonOutput

torch = pytest.importorskip("torch")
TorchDispatchMode: Any = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode

Tensor = Annotated[torch.Tensor, wherry.FP32[2]]  # type: ignore[name-defined]
Half = Annotated[torch.Tensor, wherry.BF16[2]]  # type: ignore[name-defined]
Ragged = Annotated[list[torch.Tensor], wherry.FP32[-1]]  # type: ignore[name-defined]
Pair = Annotated[np.ndarray, wherry.FP32[2]]
ROW = np.array([1, 2], np.float32)


@pytest.fixture(autouse=True)
def host_copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what has left the device. Anything but on_host() is an error."""
    copies: list[tuple[int, ...]] = []
    real, lock = tensors.on_host, threading.RLock()

    def noted(value: Any) -> Any:
        with lock, monkeypatch.context() as allowed:
            allowed.setattr(torch.Tensor, "__array__", array)
            if not isinstance(value, list):
                copies.append(tuple(value.shape))
            return real(value)

    array = torch.Tensor.__array__
    from wherry.core.instances import model_outputs
    from wherry.core.models import rows

    for module in (tensors, model_outputs, rows):
        monkeypatch.setattr(module, "on_host", noted)

    def refused(*_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(torch.Tensor, "__array__", refused)
    return copies


class Seen:
    """Where the memory of what a model was given, and gave, is."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.gave: list[int] = []
        self.rows: list[int] = []


def model(name: str, code: Callable[[Any], Any], seen: Seen | None = None, **settings: Any) -> Any:
    seen = seen or Seen()

    def execute(x: Tensor) -> Tensor:
        assert type(x) is torch.Tensor
        seen.given.append(x.data_ptr())
        seen.rows.append(len(x))
        result = code(x)
        seen.gave.append(result.data_ptr())
        return result

    execute.__name__ = name
    return wherry.model(max_batch_size=8, **settings)(execute)


def chain(*names: str) -> Any:
    """An ensemble of these members, one after the other."""
    places = ["IN", *(f"T{n}" for n in range(1, len(names))), "OUT"]
    return ensemble(
        *(step(name, {"x": places[n]}, {"output": places[n + 1]}) for n, name in enumerate(names))
    )


def test_a_chain_of_three_models_passes_on_the_same_memory(
    host_copies: list[tuple[int, ...]],
) -> None:
    seen = [Seen(), Seen(), Seen()]
    members = [model(name, lambda x: x + 1, one) for name, one in zip("abc", seen, strict=True)]
    with wherry.Runtime(*members, chain(*"abc")) as runtime:
        for _ in range(3):
            found = runtime.infer("e", IN=ROW)["OUT"]
            assert type(found) is np.ndarray
            assert found.tolist() == [4, 5]
    a, b, c = seen
    assert (a.gave, b.gave) == (b.given, c.given)
    assert host_copies == [(1, 2)] * 3  # the answers


@pytest.fixture
def two() -> tuple[Any, Any, Seen]:
    seen = Seen()
    return model("a", lambda x: x + 1), model("b", lambda x: x * 2, seen), seen


def test_a_pipeline_passes_tensors_and_its_callers_get_arrays(
    two: tuple[Any, Any, Seen], host_copies: list[tuple[int, ...]]
) -> None:
    a, b, seen = two
    kinds: list[type] = []

    @wherry.pipeline
    async def both(n: int) -> Pair:
        y = await a.ainfer(ROW + n)
        kinds.append(type(y))
        return await b.ainfer(y)  # type: ignore[no-any-return]

    with wherry.Runtime(a, b, both) as runtime, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: runtime.infer("both", n=n), range(48)))
    assert [row.tolist() for row in found] == [[2 * n + 4, 2 * n + 6] for n in range(48)]
    assert set(kinds) == {torch.Tensor}
    assert host_copies == [(2,)] * 48
    assert sum(seen.rows) == 48


def test_rows_of_several_callers_are_joined_where_they_are(
    host_copies: list[tuple[int, ...]],
) -> None:
    parts = [{"x": torch.ones(1, 2)}, {"x": np.zeros((2, 2), np.float32)}, {"x": torch.ones(1, 2)}]
    joined: Any = concatenate(parts)["x"]
    assert type(joined) is torch.Tensor
    assert joined.tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]
    assert host_copies == []


class Moves(TorchDispatchMode):  # type: ignore[misc]
    """Counts the rows that go from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        if call is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self.rows += len(result)
        return result


@pytest.mark.parametrize(
    ("devices", "moved"), [("cm", 1), ("mc", 1), ("mnc", 2), ("cnm", 2), ("mm", 0), ("cc", 2)]
)
def test_rows_that_are_on_several_devices_move_once(devices: str, moved: int) -> None:
    """The instance's device is "meta", where a copy shows, and from which nothing comes back."""
    rows = {"c": torch.ones(1, 2), "m": torch.ones(1, 2, device="meta"), "n": ROW[None]}
    a = model("a", lambda x: x + 1)
    instance = ThreadInstance("a_0", wherry.Device(), a, a.config())
    instance.load()
    instance.executable.device = "meta"
    requests = [Call(where).request for where in devices]
    for request, where in zip(requests, devices, strict=True):
        request.inputs, request.takes_tensors = {"x": rows[where]}, True
    with Moves() as moves:
        first: Any = instance.execute(requests).outcomes[0]
    assert not isinstance(first, Failure), first
    assert str(first["output"].device) == "meta"
    assert moves.rows == moved


@pytest.mark.parametrize("members", ["abc", "abac", "aab"])
def test_what_many_callers_send_through_an_ensemble_stays_in_memory(
    members: str, host_copies: list[tuple[int, ...]]
) -> None:
    """A lone batch is the next model's as it is; those of several callers are joined."""
    seen = {name: Seen() for name in members}
    models = [model(name, lambda x: x + 1, one) for name, one in seen.items()]
    with wherry.Runtime(*models, chain(*members)) as runtime, ThreadPoolExecutor(8) as pool:
        assert runtime.infer("e", IN=ROW)["OUT"].tolist() == [1 + len(members), 2 + len(members)]
        handed = list(pairwise(members))
        assert all({*seen[a].gave} & {*seen[b].given} for a, b in handed)
        assert host_copies == [(1, 2)]
        found = list(pool.map(lambda n: runtime.infer("e", IN=ROW + n)["OUT"].tolist(), range(24)))
    assert found == [[n + 1 + len(members), n + 2 + len(members)] for n in range(24)]
    assert sum(rows for rows, _ in host_copies) == 25


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_model_keeps_or_writes_to_nobody_else_sees(kept: bool) -> None:
    """Alone and in company: the answers are the same."""
    buffer = torch.zeros(8, 2)

    def into_buffer(x: Any) -> Any:
        out = torch.add(x, 1, out=buffer[: len(x)]) if kept else x.add_(1)
        return out

    def writes(x: Any) -> Any:
        return x.mul_(2)

    def view(x: Any) -> Any:
        return x[:, [0, 1]][:, :2]

    a, b, c = model("a", into_buffer), model("b", writes), model("c", view)
    branches = ensemble(
        step("a", {"x": "IN"}, {"output": "Y"}),
        step("b", {"x": "Y"}, {"output": "TWICE"}),
        step("c", {"x": "Y"}, {"output": "SAME"}),
        outputs=("Y", "TWICE", "SAME"),
    )

    @wherry.pipeline
    async def residual(n: int) -> Pair:
        y = await a.ainfer(np.full(2, n, np.float32))
        twice, same = await wherry.gather([b.ainfer(y), c.ainfer(y)])
        again = await b.ainfer(same)
        return y + twice + same + again  # type: ignore[no-any-return]

    with wherry.Runtime(a, b, c, branches, residual) as runtime:

        def answers(n: int) -> list[Any]:
            row = np.full(2, n, np.float32)
            by_name = runtime.infer("e", IN=row)
            own = runtime.infer("residual", n=n)
            assert (row == n).all()
            return [*(by_name[name].tolist() for name in ("Y", "TWICE", "SAME")), own.tolist()]

        expected = [[[k * (n + 1)] * 2 for k in (1, 2, 1, 6)] for n in range(32)]
        assert [answers(n) for n in range(4)] == expected[:4]
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(answers, range(32))) == expected


def test_callers_outside_of_pipelines_get_arrays_of_their_own() -> None:
    kept = torch.ones(1, 2)
    a = model("a", lambda x: kept)
    with wherry.Runtime(a) as runtime:
        mine = torch.zeros(2)
        found = runtime.infer("a", x=mine)
        assert type(found) is np.ndarray
        found[:] = 5
        assert runtime.infer("a", x=mine).tolist() == [1, 1]
        assert [row.tolist() for row in runtime.map("a", [mine, ROW])] == [[1, 1], [1, 1]]
        with pytest.raises(InvalidRequest, match=r"shape \[3\]"):
            runtime.infer("a", x=torch.zeros(3))


def test_rows_of_different_shapes_pass_too(host_copies: list[tuple[int, ...]]) -> None:
    @wherry.model(max_batch_size=4)
    def cut(n: list[int]) -> Ragged:
        return [torch.arange(float(one)) for one in n]

    @wherry.model(max_batch_size=4)
    def ends(rows: Ragged) -> Tensor:
        assert all(type(row) is torch.Tensor for row in rows)
        return torch.stack([row[-2:].add_(1) for row in rows])

    @wherry.pipeline
    async def last(n: int) -> Pair:
        row = await cut.ainfer(n)
        found = await ends.ainfer(row)
        assert row.tolist() == list(range(n))
        return found  # type: ignore[no-any-return]

    with wherry.Runtime(cut, ends, last) as runtime:
        assert runtime.infer("last", n=5).tolist() == [4, 5]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: runtime.infer("last", n=n), range(2, 18)))
    assert [row.tolist() for row in found] == [[n - 1, n] for n in range(2, 18)]
    assert host_copies == [(2,)] * 17


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.half(),  # as a network in half precision returns it
        lambda x: x.double(),
        lambda x: x.bfloat16(),
        lambda x: (x > 0).int() + x.int(),  # numbers that are exact
        lambda x: tuple(row for row in x),
        lambda x: torch.view_as_complex(x[:, None].contiguous()).conj().real[:, :1].expand(-1, 2),
        lambda x: x.t().contiguous().t().requires_grad_(),
        torch.nn.Parameter,
    ],
)
def test_a_chain_stays_on_the_device_whatever_form_its_tensors_have(
    made: Callable[[Any], Any], host_copies: list[tuple[int, ...]]
) -> None:
    @wherry.model(max_batch_size=8)
    def a(x: Tensor) -> Tensor:
        return made(x)

    @wherry.model(max_batch_size=8)
    def b(x: Tensor) -> Tensor:
        assert (x.dtype, x.requires_grad) == (torch.float32, False)
        return x.add_(1)

    @wherry.pipeline
    async def chained(x: Pair) -> Pair:
        return await b.ainfer(await a.ainfer(x))  # type: ignore[no-any-return]

    with wherry.Runtime(a, b, chained) as runtime, ThreadPoolExecutor(8) as pool:
        rows = [np.full(2, n, np.float32) for n in range(1, 17)]
        found = list(pool.map(lambda row: runtime.infer("chained", x=row).tolist(), rows))
    assert found == [made(torch.from_numpy(row[None]))[0].add(1).tolist() for row in rows]
    assert host_copies == [(2,)] * 16


def test_a_tensor_goes_to_a_model_of_another_datatype_as_an_array_would(
    host_copies: list[tuple[int, ...]],
) -> None:
    @wherry.model(max_batch_size=8)
    def halves(x: Half) -> Half:
        return x * 2

    @wherry.model(max_batch_size=8)
    def places(x: Tensor) -> Annotated[torch.Tensor, wherry.INT64]:  # type: ignore[name-defined]
        assert x.dtype == torch.float32
        return x.argmax(1)

    @wherry.model(max_batch_size=8)
    def counted(n: Annotated[torch.Tensor, wherry.INT32]) -> list[int]:  # type: ignore[name-defined]
        assert n.dtype == torch.int32
        return n.tolist()  # type: ignore[no-any-return]

    @wherry.pipeline
    async def best(x: Pair) -> int:
        place = await places.ainfer(await halves.ainfer(x))
        return await counted.ainfer(place)

    @wherry.pipeline
    async def wrong(x: Pair) -> int:
        return await counted.ainfer(await halves.ainfer(x[0]))

    with wherry.Runtime(halves, places, counted, best, wrong) as runtime:
        assert runtime.infer("best", x=ROW) == 1
        assert host_copies == [()]  # whether an integer fits into less bits, its value decides
        with pytest.raises(InvalidRequest, match="halves"):
            runtime.infer("wrong", x=ROW)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda x: x.mean(), "one row for each"),
        (lambda x: x.to_sparse(), "sparse|Sparse"),
        (lambda x: (x * 1).requires_grad_(), None),
        (lambda x: list(x * 1), None),
        (lambda x: x.numpy(force=True), None),
        (lambda x: x[:, :1], "shape"),
        (lambda x: torch.cat([x, x]), "rows"),
        (lambda x: x.to(torch.complex64), "FP32"),
    ],
)
def test_what_is_returned_is_checked_as_arrays_are(
    made: Callable[[Any], Any], why: str | None
) -> None:
    @wherry.model(max_batch_size=8)
    def a(x: Tensor) -> Tensor:
        return made(x)

    b = model("b", lambda x: x + 1)
    with wherry.Runtime(a, b, chain("a", "b")) as runtime:
        if why is None:
            assert runtime.infer("e", IN=ROW)["OUT"].tolist() == [2, 3]
            return
        with pytest.raises(BadModelOutput, match=why):
            runtime.infer("e", IN=ROW)


def test_a_model_for_arrays_is_given_arrays(host_copies: list[tuple[int, ...]]) -> None:
    @wherry.model(max_batch_size=8)
    def of_numpy(x: Pair) -> Pair:
        assert type(x) is np.ndarray
        x += 1
        return x

    a = model("a", lambda x: x + 1)
    with wherry.Runtime(a, of_numpy, chain("a", "of_numpy", "a")) as runtime:
        assert runtime.infer("e", IN=ROW)["OUT"].tolist() == [4, 5]
    assert host_copies == [(1, 2)] * 2


def test_half_the_bits_stay_so_on_the_way() -> None:
    @wherry.model(max_batch_size=8)
    def halves(x: Half) -> Half:
        assert x.dtype == torch.bfloat16
        return x * 2

    @wherry.pipeline
    async def twice(n: int) -> Pair:
        x = await halves.ainfer([n, n + 1])
        assert x.dtype == torch.bfloat16
        return await halves.ainfer(x)  # type: ignore[no-any-return]

    with wherry.Runtime(halves, twice) as runtime:
        assert runtime.infer("twice", n=1).tolist() == [4, 8]


class JaxArray:
    """As JAX's public class: its namespace tells that it is an array."""

    __array_namespace__ = None


class JaxArrayImpl(JaxArray):
    __dlpack__ = None
    __module__ = "jaxlib._jax"


JaxArray.__module__ = "jax"


def test_jax_says_what_its_arrays_are_by_their_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = SimpleNamespace(asarray=lambda value: JaxArrayImpl())
    monkeypatch.setitem(sys.modules, "jax.numpy", functions)

    @wherry.model(max_batch_size=8)
    def a(x: Annotated[JaxArray, wherry.FP32[2]]) -> list[str]:
        return [type(x).__name__]

    with wherry.Runtime(a) as runtime:
        assert runtime.infer("a", x=ROW) == "JaxArrayImpl"
    assert tensors.library_of(JaxArrayImpl) == "jax"
    assert tensors.library_of(type("Image", (torch.Tensor,), {"__module__": "vision"})) == "torch"


class Array:
    """The array of a library that is not torch: as much of it as is used."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, np.float32)
        self.shape, self.dtype = self.values.shape, self.values.dtype
        self.device = "there"

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: Any) -> Array:
        found = Array([])
        found.values = self.values[place]
        found.shape = found.values.shape
        return found

    def __dlpack__(self, **_: Any) -> Any:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion is not allowed")

    def copy(self) -> Array:
        return Array(self.values)

    def get(self) -> Any:
        return self.values.copy()


Its = Annotated[Array, wherry.FP32[2]]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    def concatenate(parts: list[Array]) -> Array:
        assert {type(part) for part in parts} == {Array}
        return Array(np.concatenate([part.values for part in parts]))

    module = SimpleNamespace(
        asarray=Array,
        from_dlpack=lambda other: Array(other.numpy()),
        concatenate=concatenate,
    )
    monkeypatch.setitem(sys.modules, "another_library", module)
    monkeypatch.setattr(Array, "__module__", "another_library.core")


def test_any_library_with_dlpack_is_handed_over(
    library: None, host_copies: list[tuple[int, ...]]
) -> None:
    def add(x: Its) -> Its:
        assert type(x) is Array
        return Array(x.values + 1)

    def write(x: Its) -> Its:
        x.values += 1
        return x

    members = [wherry.model(max_batch_size=8)(one) for one in (add, write)]
    b = model("b", lambda x: x * 2)
    path = chain("add", "write", "b", "write", "add")
    with wherry.Runtime(*members, b, path) as runtime, ThreadPoolExecutor(8) as pool:
        rows = [ROW + n for n in range(16)]
        found = list(pool.map(lambda row: runtime.infer("e", IN=row)["OUT"].tolist(), rows))
    assert found == [[2 * n + 8, 2 * n + 10] for n in range(16)]
    assert sum(rows for rows, _ in host_copies) == 16


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_files_pass_tensors_in_an_ensemble(
    tmp_path: Path, host_copies: list[tuple[int, ...]]
) -> None:
    class Doubled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return 2 * x

    (tmp_path / "1").mkdir()
    torch.jit.save(torch.jit.script(Doubled()), tmp_path / "1" / "model.pt")
    script = TorchModel(
        str(tmp_path),
        "1",
        TritonConfig(
            name="script",
            max_batch_size=8,
            input=[TritonInput(name="x", data_type="TYPE_FP32", dims=[2])],
            output=[TritonOutput(name="output", data_type="TYPE_FP32", dims=[2])],
        ),
    )
    members = [script, model("a", lambda x: x.add_(1))]
    with wherry.Runtime(*members, chain("script", "a", "script")) as runtime:
        assert runtime.infer("e", IN=ROW)["OUT"].tolist() == [6, 10]
        assert runtime.infer("script", x=ROW)["output"].tolist() == [2, 4]
    assert host_copies == [(1, 2)] * 2


def test_a_pipeline_has_tensors_whoever_else_is_in_the_batch() -> None:
    entered, gate, sizes = threading.Semaphore(0), threading.Semaphore(0), []

    def code(x: Any) -> Any:
        sizes.append(len(x))
        entered.release()
        assert gate.acquire(timeout=TIMEOUT)
        return x * 2

    a = model("a", code, run_in_caller=False)

    @wherry.pipeline
    async def inside(n: int) -> list[float]:
        y = await a.ainfer([n, n])
        return (y + torch.ones(2)).tolist()  # type: ignore[no-any-return]

    with wherry.Runtime(a, inside) as runtime, ThreadPoolExecutor(8) as pool:
        calls: list[Any] = [pool.submit(runtime.infer, "a", x=ROW)]
        assert entered.acquire(timeout=TIMEOUT)  # what comes meanwhile is the next batch
        for n in range(3):
            calls.append(pool.submit(runtime.infer, "inside", n=n))
            calls.append(pool.submit(runtime.infer, "a", x=ROW + n))
        until(lambda: runtime.registry.find("a").runner.queued_requests == 6)
        gate.release(8)
        found = [np.asarray(call.result(TIMEOUT)).tolist() for call in calls]
    assert sizes == [1, 6]
    assert found == [[2, 4], [1, 1], [2, 4], [3, 3], [4, 6], [5, 5], [6, 8]]


@wherry.model(max_batch_size=8)
def elsewhere(x: Tensor) -> Tensor:
    assert type(x) is torch.Tensor
    return x.add_(1)


@wherry.pipeline
async def beside(n: int) -> list[float]:
    y = await elsewhere.ainfer([n, n + 1])
    return (y + torch.full([2], 3)).tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_to_and_from_a_worker_go_arrays(host_copies: list[tuple[int, ...]]) -> None:
    a = model("a", lambda x: x + 1)
    with wherry.Runtime(isolation="thread") as runtime:
        runtime.load(elsewhere, isolation="process")
        for one in (a, chain("a", "elsewhere", "a")):
            runtime.load(one)
        assert runtime.infer("e", IN=ROW)["OUT"].tolist() == [4, 5]
        runtime.load(beside)
        assert np.asarray(runtime.infer("beside", n=1)).tolist() == [5, 6]
    assert host_copies == [(1, 2)] * 2
