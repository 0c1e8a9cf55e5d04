"""Are the files of a checkpoint, which are foreign bytes, right or refused?"""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from wherry.core.values.errors import ConfigError
from wherry.llm.engine.checkpoint import Checkpoint, stored_tensors
from wherry.llm.engine.damaged import brief
from wherry.llm.engine.runner import load_network
from wherry.llm.engine.tokenizer import Tokenizer


def written(folder: Path, header: Any, data: int = 0) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return file


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_have_their_types_and_sizes(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor(0, 24, [2, 3]),
        "b": tensor(24, 26, [], "BF16"),
        "c": tensor(26, 26, [0, 7], "I64"),
        "d": tensor(26, 28, [4], "F4"),
    }
    found = stored_tensors(written(tmp_path, header, 28))
    assert {name: (t.dtype, t.elements, t.nbytes) for name, t in found.items()} == {
        "a": ("F32", 6, 24), "b": ("BF16", 1, 2), "c": ("I64", 0, 0), "d": ("F4", 4, 2),
    }  # fmt: skip


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "model.safetensors"
    file.write_bytes(data)
    with contextlib.suppress(ConfigError):
        stored_tensors(file)


CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(params=["llama", "gemma"])
def folder(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path: Path
) -> Path:
    """A copy of a checkpoint: one of an architecture of our own, one of transformers'."""
    return Path(copytree(checkpoint(request.param), tmp_path / request.param / "tiny"))


#: Transformers' modules may take it.
of_our_own = pytest.mark.parametrize("folder", ["llama"], indirect=True)


def load(folder: Path) -> Any:
    exact = folder.parent.name != "gemma"
    return load_network(Checkpoint(folder), dtype="float32", device=CPU, exact=exact)


def change_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def change_weights(folder: Path, **tensors: torch.Tensor | None) -> None:
    changed = {**load_file(folder / WEIGHTS), **tensors}
    save_file({n: t for n, t in changed.items() if t is not None}, folder / WEIGHTS)


def test_what_is_in_order_is_loaded(folder: Path) -> None:
    assert load(folder).shape.layers == 3


@of_our_own
def test_a_field_that_is_not_computed_is_named_with_its_value_and_a_remedy(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(ConfigError, match=r"quantization_config = .*'fp8'.*checkpoint of floats"):
        load(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{", b"null", b'"x"', b"\xff\xfe", b'{"hidden_size": NaN}', b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_a_config_that_is_no_object_is_refused(folder: Path, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"tiny: config\.json"):
        load(folder)


@of_our_own
def test_a_config_that_is_too_large_is_refused(folder: Path) -> None:
    with (folder / "config.json").open("wb") as opened:
        opened.truncate(1 << 30)
    with pytest.raises(ConfigError, match=r"config\.json has more than 32 MiB"):
        load(folder)


@of_our_own
@pytest.mark.parametrize(
    "name", ["adapter_config.json", "quantize_config.json", "hf_quant_config.json"]
)
def test_files_that_say_that_there_is_more_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("{}")
    with pytest.raises(ConfigError, match=name):
        load(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="save the model with safetensors"):
        load(folder)


def test_a_tensor_of_a_layer_that_nothing_computes_with_is_refused(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight_scale"
    change_weights(folder, **{name: torch.ones(3)})
    with pytest.raises(ConfigError, match=f"1 tensors are not part of .*{name}"):
        load(folder)


@of_our_own
def test_a_tensor_of_another_part_is_refused(folder: Path) -> None:
    change_weights(folder, **{"visual.x": torch.ones(3)})
    with pytest.raises(ConfigError, match=r"1 tensors are not part of .*visual\.x"):
        load(folder)


def test_a_tensor_that_is_missing_is_named(folder: Path) -> None:
    change_weights(folder, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ConfigError, match=r"missing.*|layers\.1\.mlp\.up_proj\.weight.*missing"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    change_weights(folder, **{"model.layers.1.mlp.up_proj.weight": torch.ones(95, 48)})
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32]
)
def test_weights_that_are_no_floats_are_refused(folder: Path, dtype: torch.dtype) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(folder, **{name: torch.ones(96, 48).to(dtype)})
    with pytest.raises(ConfigError, match=f"{name}' is stored as .*dequantize"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_loaded(folder: Path, dtype: torch.dtype) -> None:
    whole = {name: found.to(dtype) for name, found in load_file(folder / WEIGHTS).items()}
    save_file(whole, folder / WEIGHTS)
    assert load(folder).shape.layers == 3


def test_what_old_versions_stored_beside_the_weights_is_left_out(folder: Path) -> None:
    change_weights(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert load(folder).shape.layers == 3


def test_a_head_of_its_own_is_not_taken_for_the_embedding(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(copytree(checkpoint("llama"), tmp_path / "tiny"))
    embedding = load_file(folder / WEIGHTS)["model.embed_tokens.weight"]
    change_weights(folder, **{"lm_head.weight": embedding.clone()})
    load(folder)
    change_weights(folder, **{"lm_head.weight": embedding + 1})
    with pytest.raises(ConfigError, match="tie_word_embeddings = True, but lm_head"):
        load(folder)


def test_a_missing_head_is_not_made_up(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=False)
    with pytest.raises(ConfigError, match=r"lm_head\.weight"):
        load(folder)


def header(entries: str, length: int | None = None, data: bytes = b"") -> bytes:
    raw = entries.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(start: int, end: int, shape: str = "[1]", dtype: str = "F32") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}'


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 4,
        header("{}", 2**63),
        header("{}", 2**64 - 1),
        header("{}", 1 << 28),
        header("{}", 1 << 20),
        header("[]"),
        header("{"),
        header("{" * 10_000),
        header(f'{{"a":{entry(0, 4)},"b":{entry(0, 4)}}}', data=bytes(4)),
        header(f'{{"a":{entry(0, 4)},"b":{entry(8, 12)}}}', data=bytes(12)),
        header(f'{{"a":{entry(4, 0)}}}', data=bytes(4)),
        header(f'{{"a":{entry(0, 4)}}}', data=bytes(8)),
        header(f'{{"a":{entry(0, 4, "[2]")}}}', data=bytes(4)),
        header(f'{{"a":{entry(0, 4, "[4611686018427387905, 4]")}}}', data=bytes(4)),
        header(f'{{"a":{entry(0, 1 << 40)}}}', data=bytes(4)),
        header(f'{{"a":{entry(0, 4, dtype="F99")}}}', data=bytes(4)),
        header(f'{{"a":{entry(0, 4)},"a":{entry(0, 4)}}}', data=bytes(4)),
    ],
)
def test_hostile_weights_are_refused_by_the_name_of_their_file(folder: Path, raw: bytes) -> None:
    (folder / WEIGHTS).write_bytes(raw)
    with pytest.raises(ConfigError, match="tiny: ") as refused:
        load(folder)
    assert str(folder.parent) not in str(refused.value)


@pytest.mark.parametrize(
    "weight_map",
    [
        None, [], {}, 7, {"a": 7}, {"a": ["x"]}, {"a": "../model.safetensors"},
        {"a": "/etc/passwd"}, {"a": "x/../model.safetensors"}, {"a": "model.bin"}, {"a": ""},
        {"a": ".."}, {"a": "absent.safetensors"}, {"a": "a\x00.safetensors"},
        {"a": "a.safetensors\n"},
    ],
)  # fmt: skip
def test_an_index_names_files_of_its_own_folder(folder: Path, weight_map: Any) -> None:
    (folder / WEIGHTS).rename(folder / "model-1.safetensors")
    (folder.parent / WEIGHTS).write_bytes((folder / "model-1.safetensors").read_bytes())
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError, match="weight_map"):
        load(folder)


def shards(folder: Path, *parts: dict[str, torch.Tensor]) -> None:
    (folder / WEIGHTS).unlink()
    names = [f"model-{number}.safetensors" for number, _ in enumerate(parts)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name)
    weight_map = {t: name for name, part in zip(names, parts, strict=True) for t in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_read_and_a_tensor_in_two_of_them_is_refused(folder: Path) -> None:
    whole = load_file(folder / WEIGHTS)
    first, *rest = whole
    shards(folder, {first: whole[first]}, {name: whole[name] for name in rest})
    assert load(folder).shape.layers == 3
    save_file(whole, folder / "model-1.safetensors")
    with pytest.raises(ConfigError, match="is in another file"):
        load(folder)


def test_sizes_that_the_files_cannot_hold_are_refused_before_memory_is_taken(folder: Path) -> None:
    change_config(folder, intermediate_size=1 << 20)
    with pytest.raises(ConfigError, match=r"tiny: (tensor|config\.json describes)"):
        load(folder)


def test_what_a_library_says_is_shown_without_places() -> None:
    error = OSError("cannot read /srv/secret/model.safetensors\nnor '/home/x/y': denied")
    assert brief(error) == "OSError: cannot read ... nor '...': denied"


NOT_READ: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "another object": b'{"model": {"type": "BPE"}}',
    "nested": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("kind", NOT_READ)
def test_a_tokenizer_that_cannot_be_read_is_refused(folder: Path, kind: str) -> None:
    (folder / "tokenizer.json").unlink()
    if (raw := NOT_READ[kind]) is not None:
        (folder / "tokenizer.json").write_bytes(raw)
    with pytest.raises(ConfigError, match="tiny: its tokenizer cannot be read") as refused:
        Tokenizer.load(folder)
    assert str(folder.parent) not in str(refused.value)


def test_a_tokenizer_that_is_too_large_is_refused(folder: Path) -> None:
    with (folder / "tokenizer.json").open("wb") as opened:
        opened.truncate(1 << 30)
    with pytest.raises(ConfigError, match=r"tokenizer\.json has more than 128 MiB"):
        Tokenizer.load(folder)


def test_code_of_a_tokenizer_is_never_run(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    file = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}, "tokenizer_class": "Mine"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **own}))
    with pytest.raises(ConfigError, match="tiny: its tokenizer cannot be read"):
        Tokenizer.load(folder)
    assert not (tmp_path / "ran").exists()
