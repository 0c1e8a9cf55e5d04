"""llama.cpp's own server, out of the package xllamacpp, in a process of its own.

    python -m benchmarks.llm_against.llama_server FILE.gguf PORT SLOTS CONTEXT_TOKENS THREADS

It has its own defaults (as many threads as cores if THREADS is 0, its prefix cache) and runs on the
CPU.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(file: str, port: str, slots: str, context: str, threads: str) -> None:
    wanted = xllamacpp.CommonParams()
    wanted.model.path = file
    wanted.port = int(port)
    wanted.n_parallel = int(slots)
    wanted.n_ctx = int(slots) * int(context)
    wanted.n_gpu_layers = 0
    if int(threads):
        wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = int(threads)
    wanted.verbosity = 1
    server = xllamacpp.Server(wanted)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(*sys.argv[1:])
