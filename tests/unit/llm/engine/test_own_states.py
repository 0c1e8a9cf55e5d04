"""Models whose layers keep more than keys and values give transformers' tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.llm.engine import tiny
from wherry.core.values.errors import ConfigError
from wherry.llm.engine.choice import facts_of
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.own_states import StateRunner, Way
from wherry.llm.engine.sampling import Sampling

LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 6,
    "moe_intermediate_size": 32,
}
#: One of each kind: its configuration, and how far it goes on from its cache.
KINDS: dict[str, tuple[tiny.Form, Way]] = {
    "states": (("MambaConfig", {"state_size": 8}), Way.TOKENS),
    "states and attention": (
        (
            "Qwen3NextConfig",
            {
                "head_dim": 16,
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 32,
            },
        ),
        Way.PIECES,
    ),
    "latent attention": (("DeepseekV3Config", LATENT), Way.PIECES),
    "soft caps": (("Gemma2Config", {"head_dim": 8, "sliding_window": 16}), Way.PIECES),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    (name, fields), way = KINDS[request.param]
    folder = tmp_path_factory.mktemp("states")
    torch.manual_seed(7)
    net = tiny.network((name, tiny.SIZES | fields)).eval()
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    net.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder, way


def engine_of(folder: Path, **options: Any) -> Engine:
    made, _ = load_engine(str(folder), "m", "cpu", cache_gb=0.02, threads=1, **options)
    return made


def drained(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def prompt_of(length: int, first: int) -> list[int]:
    return [(first + 7 * place) % 250 + 3 for place in range(length)]


def test_their_tokens_are_those_of_transformers(kind: tuple[Path, Way]) -> None:
    """Together, with prompts in pieces, and as several answers to one prompt."""
    folder, way = kind
    assert facts_of(str(folder)).refusals
    engine = engine_of(folder, max_step_tokens=16)
    assert engine_runner(engine).way is way
    wish = Sampling(temperature=0.0, max_tokens=10, ignore_eos=True)
    prompts = [prompt_of(length, length) for length in (3, 33, 60)]
    asked = [engine.add(prompt, wish)[0] for prompt in prompts]
    twice = engine.add(prompts[0], Sampling(max_tokens=6, temperature=0.0, n=2, ignore_eos=True))
    drained(engine)
    for prompt, sequence in zip(prompts, asked, strict=True):
        assert sequence.tokens[len(prompt) :] == tiny.reference(folder, prompt, 10)
    assert [s.tokens[3:] for s in twice] == [asked[0].tokens[3:9]] * 2
    assert all(ended.table.held is None for ended in (*asked, *twice))


def passes_of(engine: Engine) -> list[int]:
    """The texts in each forward pass from here on."""
    made: list[int] = []
    net = engine_runner(engine)._net
    net.register_forward_pre_hook(
        lambda _, args, options: made.append(len(options["input_ids"])), with_kwargs=True
    )
    return made


def test_sequences_whose_caches_have_the_same_shapes_are_one_forward_pass(
    kind: tuple[Path, Way],
) -> None:
    """Some end and others come meanwhile: the tokens stay transformers'."""
    folder, _ = kind
    engine = engine_of(folder, prompt_share=1.0)  # else a slow step puts off the prompt that comes
    runner, passes = engine_runner(engine), passes_of(engine)
    always = type(runner._net).__name__ == "MambaForCausalLM"
    lengths = [9, 9, 9, 20, 31] if always else [9] * 5
    limits = [4, 12, 12, 12, 8]
    sequences = []
    for place, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        wish = Sampling(temperature=0.0, max_tokens=limit, ignore_eos=True)
        sequences += engine.add(prompt_of(length, place), wish)
    engine.step()
    assert passes == [1] * 5
    for _ in range(3):
        passes.clear()
        engine.step()
        assert passes == [5]
    sequences += engine.add(prompt_of(12, 7), Sampling(temperature=0.0, max_tokens=6))
    engine.step()
    passes.clear()
    engine.step()
    assert sorted(passes) == ([5] if always else [1, 4])
    drained(engine)
    for one in sequences:
        prompt = one.tokens[: one.prompt_tokens]
        assert one.tokens[len(prompt) :] == tiny.reference(folder, prompt, one.generated_tokens)


def test_a_cache_without_a_row_for_each_text_is_not_joined() -> None:
    """This model keeps what all texts of a pass have together."""
    net = tiny.network(("MambaConfig", tiny.SIZES | {"state_size": 8})).eval()
    runner = StateRunner(net, name="m", dtype=torch.float32, device=torch.device("cpu"))
    assert runner._may_stack

    def mix(_: Any, args: Any, options: dict[str, Any]) -> None:
        if len(options["input_ids"]) > 1:
            for layer in options[runner._cache].layers:
                layer.recurrent_states[0] += layer.recurrent_states[0].mean(0, keepdim=True)

    net.register_forward_pre_hook(mix, with_kwargs=True)
    runner = StateRunner(net, name="m", dtype=torch.float32, device=torch.device("cpu"))
    assert not runner._may_stack


def test_a_preempted_sequence_begins_anew(kind: tuple[Path, Way]) -> None:
    folder, _ = kind
    engine = engine_of(folder, context_tokens=80)
    wish = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    first, second = (engine.add(prompt_of(20, start), wish)[0] for start in (1, 2))
    for _ in range(4):
        engine.step()
    engine.scheduler._preempt(second)
    drained(engine)
    assert second.preemptions == 1
    for sequence in (first, second):
        expected = tiny.reference(folder, sequence.tokens[:20], 12)
        assert sequence.tokens[20:] == expected


def test_log_probabilities_of_a_prompt_are_the_model_s(kind: tuple[Path, Way]) -> None:
    folder, _ = kind
    engine = engine_of(folder, max_step_tokens=8)
    prompt = prompt_of(21, 5)
    wish = Sampling(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (sequence,) = engine.add(prompt, wish)
    drained(engine)
    with torch.inference_mode():
        logits = tiny.reference_network(folder)(input_ids=torch.tensor([prompt])).logits[0]
    expected = logits.log_softmax(-1)[range(20), prompt[1:]]
    found = torch.tensor([told.logprob for told in sequence.prompt_report])
    assert torch.allclose(found, expected, atol=1e-3)


def test_memory_bounds_how_many_run_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tiny.network(("MambaConfig", tiny.SIZES | {"state_size": 8})).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    made, _ = load_engine(str(tmp_path), "m", "cpu", cache_gb=100e-6, threads=1)
    assert 1 <= made.scheduler.max_running < 64
    with pytest.raises(ConfigError, match="no memory for the caches: a sequence takes"):
        load_engine(str(tmp_path), "m", "cpu", cache_gb=1e-6, threads=1)


def of_sizes(folder: Path, name: str, fields: dict[str, Any]) -> Path:
    torch.manual_seed(3)
    net = tiny.network((name, tiny.SIZES | fields)).eval()
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    net.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_a_model_that_counts_positions_otherwise_is_refused(tmp_path: Path) -> None:
    """RoBERTa's own begin after the padding token's number."""
    fields = {"is_decoder": True, "pad_token_id": 1}
    folder = of_sizes(tmp_path, "CamembertConfig", fields)
    with pytest.raises(ConfigError, match=r"generate\(\) counts positions.*a model of your own"):
        engine_of(folder)


def test_a_model_that_cannot_make_a_cache_is_refused() -> None:
    """transformers itself fails unless it is told to go without."""
    net = tiny.network(("LlamaConfig", tiny.SIZES))
    forward = type(net).forward

    def strict(
        self: Any, input_ids: Any, use_cache: Any = None, past_key_values: Any = None
    ) -> Any:
        if use_cache is not False:
            raise AttributeError("no attribute 'num_hidden_layers'")
        return forward(self, input_ids=input_ids, use_cache=False)

    net.forward = strict.__get__(net)
    with pytest.raises(ConfigError, match="does not go on from a cache: AttributeError"):
        StateRunner(net.eval(), name="m", dtype=torch.float32, device=torch.device("cpu"))


def test_rounding_by_what_is_computed_at_once_leaves_the_cache() -> None:
    """As bitsandbytes' 8 bits do; of weights that are not quantized it would be a later token."""
    torch.manual_seed(0)
    net = tiny.network(("LlamaConfig", tiny.SIZES)).eval()

    def rounded(module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        step = given[0].abs().max() / 127
        return ((given[0] / step).round() * step,)

    for layer in net.model.layers:
        layer.mlp.register_forward_pre_hook(rounded)
    made = partial(StateRunner, net, name="m", dtype=torch.float32, device=torch.device("cpu"))
    assert made(quantized=True).way is Way.TOKENS
    with pytest.raises(ConfigError, match="not a causal model"):
        made()


def test_widths_of_each_layer_are_taken(tmp_path: Path) -> None:
    """Gemma 3n tells one for each layer."""
    fields = {
        "intermediate_size": [96, 96, 96], "head_dim": 8, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": tiny.VOCABULARY,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 16, "activation_sparsity_pattern": [0.0, 0.0, 0.0],
    }  # fmt: skip
    folder = of_sizes(tmp_path, "Gemma3nTextConfig", fields)
    prompt = prompt_of(20, 1)
    engine = engine_of(folder)
    (one,) = engine.add(prompt, Sampling(temperature=0.0, max_tokens=6, ignore_eos=True))
    drained(engine)
    assert one.tokens[20:] == tiny.reference(folder, prompt, 6)


def test_a_model_to_which_generate_adds_tokens_is_refused() -> None:
    """XLM predicts the token of a mask that is put behind the text."""
    net = tiny.network(("XLMConfig", {"emb_dim": 48, "n_heads": 6, "n_layers": 2, "n_words": 300}))
    with pytest.raises(ConfigError, match=r"generate\(\) adds tokens.*a model of your own"):
        StateRunner(net.eval(), name="m", dtype=torch.float32, device=torch.device("cpu"))


def test_logits_that_are_no_numbers_are_told_as_that() -> None:
    net = tiny.network(("LlamaConfig", tiny.SIZES)).eval()
    net.model.norm.weight.data[0] = torch.nan
    with pytest.raises(ConfigError, match=r"its logits are not numbers.*out of range; download"):
        StateRunner(net, name="m", dtype=torch.float32, device=torch.device("cpu"))


def test_a_model_that_looks_at_later_tokens_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "wherry")
    net = tiny.network(("BertConfig", tiny.SIZES | {"is_decoder": False})).eval()
    with pytest.raises(ConfigError, match=r"not a causal model.*set is_decoder to true in config"):
        StateRunner(net, name="m", dtype=torch.float32, device=torch.device("cpu"))
    said = [vars(record) for record in caplog.records if record.msg == "cache not used"]
    ways = ("prompts in pieces", "prompts as a whole")
    assert [(one["way"], one["why"]) for one in said] == [(w, "it gives no cache") for w in ways]


def engine_runner(engine: Engine) -> StateRunner:
    runner: Any = engine._run
    return runner.__self__  # type: ignore[no-any-return]
