"""Which tests are about which part of wherry? `make test PART=llm` runs those of one.

`python -m tests.parts llm` prints its folder of tests/unit and its files of tests/integration.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
#: Of tests/integration, by what follows `test_` in their names.
INTEGRATION = {
    "core": "fork many_models media media_in_a_program memory own_rows peers "
    "replaced_under_requests sequences shared_worker unsendable_rows worker_faults",
    "server": "alerts board browser dashboard docs_page fronts grpc_server no_paths openapi "
    "opentelemetry perf_analyzer_wire refusal_forms reload request_cost request_size_costs "
    "rolling_restart server_life site_search tritonclient_grpc tritonclient_http",
    "triton": "golden repository_sequences triton_python tritonclient_repository",
    "llm": "anthropic chat_page llm llm_bad_input llm_int8 openai openai_audio "
    "openai_llm three_turns",
    "bench": "bench top",
    "deploy": "ray_serve ray_servers",
}
FOLDERS = {"bench": ["unit/benchmarks"], "deploy": ["deploy"]}


def paths(part: str) -> Iterator[Path]:
    for folder in [f"unit/{part}", *FOLDERS.get(part, ())]:
        yield TESTS / folder
    for name in INTEGRATION[part].split():
        yield TESTS / f"integration/test_{name}.py"


if __name__ == "__main__":
    sys.stdout.write(" ".join(str(path.relative_to(TESTS.parent)) for path in paths(sys.argv[1])))
