from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wherry.core.models.model import Device
from wherry.core.values.errors import ConfigError
from wherry.llm.engine import choice
from wherry.server.cli import main
from wherry.server.cli.check import _memory_of_workers, print_checkpoint
from wherry.triton.backends.load import INSTEAD

ENSEMBLE = """platform: "ensemble"
input { name: "i" data_type: TYPE_FP32 dims: 1 }
output { name: "o" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step { model_name: "a" input_map { key: "x" value: "i" }
                             output_map { key: "y" value: "o" } }
                      step { model_name: "broken" input_map { key: "x" value: "i" }
                             output_map { key: "y" value: "p" } } }"""


def test_one_run_tells_of_every_problem_of_every_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, config in (
        ("broken", 'max_batch_sise: 4\ninput { name: "x" data_type: TYPE_FP33 dims: 0 }'),
        ("e", ENSEMBLE),
        ("odd", 'backend: "onnxruntim"'),
        ("plan", 'platform: "tensorrt_plan" max_batch_size: ${batch}'),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)

    assert main(["check", str(tmp_path)]) == 3

    assert capsys.readouterr().out.splitlines() == [
        "broken (versions: 1): PROBLEMS",
        "  broken/config.pbtxt:1: max_batch_sise: unknown field 'max_batch_sise';"
        " did you mean 'max_batch_size'?",
        "  broken/config.pbtxt:2: input[0].data_type: unknown value 'TYPE_FP33';"
        " did you mean 'TYPE_FP32'?",
        "  broken/config.pbtxt:2: input[0].dims[0]: 0 must be at least 1, or -1 for any size",
        "e (versions: 1): PROBLEMS",
        "  e: its members have problems: broken",
        "  e: its members are not there: a",
        "odd (versions: 1): PROBLEMS",
        "  load failed for model 'odd': version 1 is at UNAVAILABLE state: model 'odd': unknown"
        " backend 'onnxruntim'; did you mean 'onnxruntime'?",
        "plan (versions: 1): PROBLEMS",
        "  plan/config.pbtxt:1: max_batch_size: ${batch} is not filled in: write a whole number in"
        " its place, by hand or with the template's script (fill_template.py)",
        f"  plan: backend 'tensorrt_plan' is not here: {INSTEAD['tensorrt_plan']}",
        "4 models: 4 with problems: broken, e, odd, plan",
    ]


def test_what_workers_take_is_told_and_what_their_contexts_do_on_a_gpu() -> None:
    def instance(number: int, device: Device, rss: int | None) -> Any:
        return SimpleNamespace(name=f"m_{number}", device=device, rss_bytes=rss)

    cpu = [instance(0, Device(), 1_500_000_000), instance(1, Device(), 2_000_000)]
    assert _memory_of_workers(cpu) == "1.50 GB in m_0, 2.0 MB in m_1"
    gpu = [instance(n, Device("cuda", n // 2), 3_000_000) for n in range(3)]
    assert _memory_of_workers(gpu) == (
        "3.0 MB in m_0, 3.0 MB in m_1, 3.0 MB in m_2, cuda:0: 1.00 GB for contexts, and the"
        " weights, cuda:1: 500.0 MB for contexts, and the weights"
    )
    assert _memory_of_workers([instance(0, Device("cuda", 0), None)]) == ""


def test_a_folder_of_models_that_is_empty_is_good_only_if_models_may_come_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--model-store", str(tmp_path)]) == 2
    assert "it is empty" in capsys.readouterr().err
    assert main(["check", "--model-store", str(tmp_path), "--model-control-mode=poll"]) == 0
    assert capsys.readouterr().out == "0 models: all good\n"


@pytest.mark.parametrize("command", ["serve", "check"])
def test_there_must_be_something_to_serve(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main([command]) == 2
    assert "nothing to serve: name a file" in capsys.readouterr().err


def test_a_repository_that_is_not_there_is_a_wrong_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"--model-repository={tmp_path / 'missing'}"]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_what_a_checkpoint_needs_is_said_before_it_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "strange"
    folder.mkdir()
    config = {
        "architectures": ["StrangeForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [100], "data_offsets": [0, 200]}}).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(200))

    monkeypatch.setattr(choice, "find_spec", bool)  # as if every engine were installed
    print_checkpoint(f"llm:{folder}")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1].startswith("engine transformers architectures = ['StrangeForCausalLM']")
    assert "context 512 tokens at most" in lines
    assert "KV cache 1.0 MB for 1000 tokens" in lines
    memory = next(line for line in lines if line.startswith("memory "))
    assert re.fullmatch(
        r"memory up to \S+ [MG]B of \S+ [MG]B free: weights, libraries, KV cache up to \S+ [MG]B",
        memory,
    )
    assert lines[-2].startswith("chat no")

    on_a_gpu = replace(choice.here(), gpu=True)
    monkeypatch.setattr("wherry.llm.api.here", lambda: on_a_gpu)
    for given, told in (
        ("", "memory 500.0 MB and 85 % of what is free then: gpu_memory=0.4 takes less"),
        ("&gpu_memory=0.4", "memory 40% of the GPU 500.0 MB of it for weights and context"),
        ("&cache_gb=2", "memory 2.50 GB and what a step takes"),
    ):
        print_checkpoint(f"llm:{folder}?engine=transformers{given}")
        assert told in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="not fully covered; download it again"):
        print_checkpoint(f"llm:{folder}")
    with pytest.raises(ConfigError, match="engine wherry: not computed exactly"):
        print_checkpoint(f"llm:{folder}?engine=wherry")
    for target in ("app.py", "llm:some/model", f"vllm:{folder}"):
        print_checkpoint(target)
    assert not capsys.readouterr().out


MODELS = """
import wherry

@wherry.model(max_batch_size=8, examples=[{"text": "a", "k": 2}])
def repeat(text: list[str], k: list[int] = 1) -> list[str]:
    return [one * n for one, n in zip(text, k)]

@wherry.model
def plain(flag: bool) -> bytes:
    return b""
"""


def test_a_check_shows_signatures_and_what_differs_from_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_app.py").write_text(MODELS)
    shown = []
    for flags in (["--isolation", "thread"], ["--isolation", "thread", "--all"]):
        assert main(["check", "checked_app.py", *flags]) == 0
        shown.append(re.sub(r"\(\d+\.\d ms\)", "(...)", capsys.readouterr().out))
    assert shown[0].splitlines() == [
        "repeat (version 1, 1 instance)",
        "  takes    (text: str, k: int = 1) -> str",
        '  example  {"text":"a","k":2}',
        '           -> "aa"  (...)',
        "",
        "  max_batch_size  8       model",
        "  isolation       thread  flag --isolation",
        "  the other settings have their defaults; --all lists them",
        "",
        "plain (version 1, 1 instance)",
        "  takes    (flag: bool) -> bytes",
        "  no examples; examples=[{...}] of the model are run here",
        "",
        "  isolation  thread  flag --isolation",
        "  the other settings have their defaults; --all lists them",
        "",
    ]
    assert re.search(r"^  max_queue_size +1024 +default$", shown[1], re.M)
    assert "--all" not in shown[1]


@pytest.mark.slow
def test_a_model_with_defaults_only_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "default_app.py").write_text(MODELS.replace("max_batch_size=8, ", ""))
    assert main(["check", "default_app.py"]) == 0
    batched, plain = capsys.readouterr().out.split("plain (")
    note = "  note     it takes batches, but max_batch_size is 1, so each row runs alone\n"
    assert (note in batched, note in plain) == (True, False)
    assert "  all settings have their defaults; --all lists them\n" in plain
