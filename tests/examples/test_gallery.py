"""The gallery: each example's README runs as it is shown, and its models answer as they should."""

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # noqa: F401 - it opens files of its own when it is imported, for the process
import pytest
from PIL import Image

import wherry
from tests.examples.pages import opened

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs/how-to/gallery.md"
SPEECH = Path(sys.prefix) / "share/speech/pytest_audioeval/samples/audio/en"

pytestmark = pytest.mark.timeout(400)


def portrait() -> Image.Image:
    skimage = pytest.importorskip("skimage")
    return Image.fromarray(skimage.data.astronaut())


def photo(folder: Path) -> None:
    portrait().save(folder / "photo.jpg")


def speech(folder: Path) -> None:
    pytest.importorskip("faster_whisper")
    (folder / "speech.wav").write_bytes((SPEECH / "quick_brown_fox.wav").read_bytes())


def clip(folder: Path) -> None:
    photo(folder)
    tiny_clip(folder / "clip")


def nothing(folder: Path) -> None:
    pass


#: What a README finds in its folder.
SHOWN: dict[str, Callable[[Path], None]] = {
    "search": nothing,
    "tabular": nothing,
    "faces": photo,
    "speech_to_text": speech,
    "zero_shot_images": clip,
    "tools": nothing,
    "rag": nothing,
    "diffusion": nothing,
}


def test_each_example_of_the_gallery_can_be_installed_and_read_in_minutes() -> None:
    """Only a model from a hub, of which there was no run, has no picture."""
    names = re.findall(r"\*\*\[[^]]+\]\(../../examples/(\w+)/README.md\)\*\*", GALLERY.read_text())
    assert len(names) == 10
    for folder in (ROOT / "examples" / name for name in names):
        pictures = list(folder.glob("picture.*"))
        assert [picture.name for picture in pictures if picture.stat().st_size > 100_000] == []
        assert len(pictures) == (folder.name != "zero_shot_images")
        assert all(picture.name in (folder / "README.md").read_text() for picture in pictures)
        assert re.match(r'"""[^"]*?\?', (folder / "app.py").read_text())
        assert (folder / "requirements.txt").exists()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", SHOWN)
def test_what_the_readme_shows_happens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its thread would stay
    monkeypatch.setenv("CLIP", str(tmp_path / "clip"))
    SHOWN[name](tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with opened(ROOT / "examples" / name / "README.md", tmp_path) as page:
        page.run()


def app(name: str) -> Any:
    return importlib.import_module(f"examples.{name}.app")


@pytest.mark.slow
def test_a_question_finds_its_note_in_any_company() -> None:
    search = app("search")
    questions = {
        "Where does my money go?": "Refunds",
        "the parcel is lost": "If a delivery",
        "kids": "Children",
    }
    with wherry.Runtime(search.search, search.embed) as runtime:
        alone = {text: runtime.infer("search", query=text, top=18) for text in questions}
        together = list(runtime.map("search", [{"query": text, "top": 18} for text in questions]))
        lengths = np.linalg.norm([runtime.infer("embed", text=text) for text in ("", "a" * 5000)])
    assert all(alone[text][0]["text"].startswith(start) for text, start in questions.items())
    for found, expected in zip(together, alone.values(), strict=True):
        assert [hit["text"] for hit in found[:1]] == [hit["text"] for hit in expected[:1]]
        assert len(found) == len(search.NOTES)
    assert lengths == pytest.approx(np.sqrt(2), abs=1e-3)


@pytest.mark.slow
def test_a_forecast_is_the_mean_and_what_each_column_adds() -> None:
    pytest.importorskip("xgboost")
    tabular = app("tabular")
    patients = [tabular.Patient(30, bmi, 90, 4.5, 85) for bmi in (18.0, 24.0, 31.0, 40.0)]
    with wherry.Runtime(tabular.predict) as runtime:
        found = list(runtime.map("predict", patients))
        assert found == [runtime.infer("predict", patient=one) for one in patients]
    means = [row["progression"] - sum(row["because"].values()) for row in found]
    assert means == pytest.approx([152.1] * 4, abs=1.0)
    assert found[0]["progression"] < found[2]["progression"] < found[3]["progression"]


@pytest.mark.slow
def test_a_face_has_its_box_where_it_is_and_elsewhere_is_none() -> None:
    faces = app("faces")
    face = portrait()
    wide = Image.new("RGB", (900, 512), "grey")
    wide.paste(face, (388, 0))
    with wherry.Runtime(faces.faces, faces.drawn) as runtime:
        [alone] = runtime.infer("faces", photo=face)
        [moved] = runtime.infer("faces", photo=wide)
        for empty in (Image.new("RGB", (3, 700)), Image.new("RGB", (300, 200), "teal")):
            assert runtime.infer("faces", photo=empty) == []
        marked = runtime.infer("drawn", photo=face.copy())
    left, top, right, bottom = alone["box"]
    assert left < 224 < right  # the nose
    assert top < 115 < bottom
    assert moved["box"] == pytest.approx([left + 388, top, right + 388, bottom], abs=12)
    assert marked.size == face.size
    assert np.any(np.asarray(marked)[top, left:right] != np.asarray(face)[top, left:right])


@pytest.mark.slow
@pytest.mark.full
def test_each_drawing_is_the_same_alone_and_among_others_of_other_lengths() -> None:
    draw = app("diffusion").draw
    with wherry.Runtime(draw) as runtime:
        callers: list[dict[str, Any]] = [
            {"digit": k, "steps": 10 + 3 * k, "seed": k, "every": 5} for k in range(10)
        ]
        alone = [list(runtime.stream("draw", **one)) for one in callers]
        many = [runtime.stream("draw", **one) for one in callers]
        together = [list(one) for one in many]
        wrongs: tuple[dict[str, Any], ...] = (
            {"digit": 10},
            {"digit": 1, "steps": 0},
            {"digit": 1, "every": 0},
        )
        for wrong in wrongs:
            with pytest.raises(wherry.InvalidRequest, match="digit: 0 to 9"):
                list(runtime.stream("draw", **wrong))
    assert [len(one) for one in alone] == [-(-one["steps"] // 5) for one in callers]
    for one, other in zip(alone, together, strict=True):
        assert np.abs(np.asarray(one[-1], int) - np.asarray(other[-1], int)).max() <= 1
    assert digits_of(alone) >= 8


def digits_of(drawings: list[list[Any]]) -> int:
    """How many a classifier of real digits takes for what they were to be."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    data = load_digits()
    known = KNeighborsClassifier(3).fit(data.data, data.target)
    last = np.stack([np.asarray(images[-1]).ravel() for images in drawings]) / 255 * 16
    return int((known.predict(last) == np.arange(10)).sum())


@pytest.mark.slow
@pytest.mark.full
def test_a_model_only_answers_with_calls_that_its_tools_can_run() -> None:
    tools = app("tools")
    with wherry.Runtime(tools.chat, tools.ask) as runtime:
        stock = runtime.infer("ask", question="How many helmets do you have?")
        assert stock["result"].endswith(": 12 in the shop")
        for text in ("hello", "", '{"tool": "delete", "item": "*"}', "Say: no."):
            assert runtime.infer("ask", question=text)["call"]["tool"] in ("stock", "multiply")


def tiny_clip(folder: Path) -> None:
    """A CLIP with random weights, as `save_pretrained` writes one; it knows letters."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    words = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: k for k, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    layer = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = {**layer, "vocab_size": len(words), "num_attention_heads": 2}
    ends = {"eos_token_id": len(words) - 1, "bos_token_id": len(words) - 2}
    vision = {**layer, "image_size": 32, "patch_size": 8, "num_attention_heads": 2}
    config = CLIPConfig(text_config={**text, **ends}, vision_config=vision, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    side: dict[str, Any] = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    CLIPProcessor(CLIPImageProcessor(**side), tokenizer).save_pretrained(folder)


@pytest.mark.slow
def test_each_caller_has_shares_of_its_own_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero_shot = app("zero_shot_images")
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its thread would stay
    monkeypatch.setattr(zero_shot, "CHECKPOINT", str(tmp_path / "clip"))
    tiny_clip(tmp_path / "clip")
    images = [Image.new("RGB", (40 + 20 * k, 50), (60 * k, 90, 200 - 60 * k)) for k in range(3)]
    labels = [["a cat", "a dog"], ["a dog"], ["a bridge", "a cat", "the sea"]]
    with wherry.Runtime(zero_shot.classify) as runtime:
        rows: list[dict[str, Any]] = [
            {"photo": one, "labels": own} for one, own in zip(images, labels, strict=True)
        ]
        together = list(runtime.map("classify", rows))
        alone = [runtime.infer("classify", **row) for row in rows]
    for found, one, names in zip(together, alone, labels, strict=True):
        assert list(found) == names
        assert sum(found.values()) == pytest.approx(1, abs=0.01)
        assert found == pytest.approx(one, abs=0.01)


@pytest.mark.slow
@pytest.mark.full
def test_the_page_of_notes_is_served_beside_the_models() -> None:
    from starlette.testclient import TestClient

    page = importlib.import_module("examples.rag.page")
    with TestClient(page.app) as client:
        assert "<title>Questions" in client.get("/").text
        body = {"question": "I forgot my password"}
        reply = client.post("/v2/models/rag/generate_stream", json=body).text
    parts = [json.loads(line.removeprefix("data: ")) for line in reply.split("\n\n") if line]
    assert parts[0]["sources"][0]["text"].startswith("The password is reset")
    assert "password" in "".join(part["text"] for part in parts)
