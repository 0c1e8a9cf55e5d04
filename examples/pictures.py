"""How do the examples' pictures come about? Each from one run of its models.

python -m examples.pictures [NAME...]
"""

from __future__ import annotations

import importlib
import io
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image, ImageDraw

import wherry

Array = np.ndarray[Any, np.dtype[Any]]

HERE = Path(__file__).parent
SPEECH = Path(sys.prefix) / "share/speech/pytest_audioeval/samples/audio/en"
RATE = 16000  # Hz
WIDTH, HEIGHT, LINE = 640, 360, 26
STYLE = """<style>
  rect.card { fill: #fbfaf7; stroke: #d8d4c8 }
  text { fill: #23211c; font: 16px ui-monospace, monospace }
  .soft { fill: #6f6a5d } .bar { fill: #2f7d6b } .low { fill: #c4573a } .wave { stroke: #6f6a5d }
  @media (prefers-color-scheme: dark) {
    rect.card { fill: #1d1f21; stroke: #3a3d40 } text { fill: #e8e6e1 } .soft { fill: #a09b8e }
    .bar { fill: #57b39d } .low { fill: #e58266 } .wave { stroke: #a09b8e }
  }
</style>"""


def card(parts: Iterable[str]) -> bytes:
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">{STYLE}
<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="14"/>
{body}
</svg>
""".encode()


def text(line: str, top: float, left: float = 28, kind: str = "") -> str:
    return f'<text class="{kind}" x="{left}" y="{top}">{escape(line)}</text>'


def paragraph(words: str, top: float, kind: str = "", width: int = 58) -> list[str]:
    lines = textwrap.wrap(words, width)
    return [text(line, top + LINE * number, kind=kind) for number, line in enumerate(lines)]


def bars(rows: Sequence[tuple[str, float]], top: float, left: float = 420) -> list[str]:
    """A line for each row, with its value as a bar from `left`, which is 0."""
    scale = 90 / max(abs(value) for _, value in rows)
    parts = []
    for label, value in rows:
        lines = paragraph(label, top, width=36)
        kind, start = ("bar", left) if value >= 0 else ("low", left + value * scale)
        parts += [*lines, text(f"{value:g}", top, 550, "soft")]
        parts.append(
            f'<rect class="{kind}" x="{start:.1f}" y="{top - 13}"'
            f' width="{abs(value) * scale:.1f}" height="16" rx="3"/>'
        )
        top += LINE * len(lines) + 14
    return parts


def search(app: Any) -> bytes:
    query = "I want my money back"
    with wherry.Runtime(app.search) as runtime:
        hits = runtime.infer("search", query=query)
    rows = [(hit["text"], hit["score"]) for hit in hits]
    return card([text(f"? {query}", 60), *bars(rows, 120)])


def tabular(app: Any) -> bytes:
    patient = app.Patient(59, 32.1, 101, 4.86, 87)
    with wherry.Runtime(app.predict) as runtime:
        forecast = runtime.infer("predict", patient=patient)
    shares = list(forecast["because"].items())
    title = text(f"progression in a year: {forecast['progression']:.0f}, because of", 60)
    return card([title, *bars(shares, 120)])


def faces(app: Any) -> bytes:
    import skimage

    photo = Image.fromarray(skimage.data.astronaut())
    with wherry.Runtime(app.faces, app.drawn) as runtime:
        photo = runtime.infer("drawn", photo=photo)
    return webp(photo.crop((0, 20, 512, 308)))


def ocr(app: Any) -> bytes:
    from examples.ocr.page import photo

    page = photo()
    models = (app.decode, app.detect, app.cut, app.direction, app.recognise, app.ocr)
    with wherry.Runtime(*models) as runtime:
        found = runtime.infer("ocr", jpeg=page)
    image = Image.open(io.BytesIO(page)).convert("RGB")
    out = Image.new("RGB", (920, image.height), "white")
    pen = ImageDraw.Draw(image)
    for corners in found["corners"]:
        pen.polygon([tuple(corner) for corner in corners.tolist()], outline=(196, 60, 40), width=3)
    out.paste(image.crop((0, 0, 480, image.height)))
    pen = ImageDraw.Draw(out)
    for line, corners in zip(found["lines"], found["corners"], strict=True):
        pen.text((520, corners[0, 1]), line, "black", font_size=28)
    return webp(out)


def speech_to_text(app: Any) -> bytes:
    recording = spoken("quick_brown_fox")
    with wherry.Runtime(app.whisper) as runtime:
        heard = runtime.infer("whisper", audio=wav(recording))
    return card([*wave(recording), *paragraph(heard, 300)])


def voice(app: Any) -> bytes:
    pause = np.zeros(20000)
    recording = np.concatenate([pause, spoken("hello_world"), pause, spoken("counting"), pause])
    with wherry.Runtime(app.speech) as runtime:
        found = runtime.infer("speech", audio=wav(recording))
    second = 584 * RATE / len(recording)
    marks = [
        f'<rect class="bar" opacity="0.35" x="{28 + second * span["start"]:.0f}" y="60"'
        f' width="{second * (span["end"] - span["start"]):.0f}" height="180" rx="4"/>'
        for span in found["speech"]
    ]
    words = ", ".join(f"{span['start']}-{span['end']} s" for span in found["speech"])
    return card([*marks, *wave(recording), *paragraph(f"speech: {words}", 290)])


def spoken(name: str) -> Array:
    samples: Array = soundfile.read(SPEECH / f"{name}.wav")[0]
    return samples


def wav(recording: Array) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, recording, RATE, format="WAV")
    return out.getvalue()


def wave(recording: Array, middle: float = 150) -> list[str]:
    loudest = [np.abs(part).max() for part in np.array_split(recording, 292)]
    path = "".join(
        f"M{28 + 2 * n} {middle - h:.1f}V{middle + h:.1f}"
        for n, h in enumerate(75 * np.array(loudest) / max(loudest))
    )
    return [f'<path class="wave" stroke-width="1.4" d="{path}"/>']


def tools(app: Any) -> bytes:
    parts: list[str] = []
    with wherry.Runtime(app.chat, app.ask) as runtime:
        for number, question in enumerate(
            ("How many helmets do you have?", "How much is 17 * 23?")
        ):
            answer = runtime.infer("ask", question=question)
            top = 70 + 150 * number
            call = ", ".join(f"{name}={value!r}" for name, value in answer["call"].items())
            parts += [text(f"? {question}", top), text(call, top + 36, kind="soft")]
            parts.append(text(answer["result"], top + 72))
    return card(parts)


def rag(app: Any) -> bytes:
    """The page, in the system's browser."""
    import threading

    import uvicorn
    from playwright.sync_api import sync_playwright

    del app
    server = uvicorn.Server(uvicorn.Config("examples.rag.page:app", port=8765, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.1)
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path="/usr/bin/chromium")
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto("http://127.0.0.1:8765")
            page.click("button")
            page.wait_for_function("document.querySelector('output').textContent.endsWith('.')")
            return webp(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    finally:
        server.should_exit = True
        thread.join()


def diffusion(app: Any) -> bytes:
    """Rows: digits; columns: every eighth step."""
    from concurrent.futures import ThreadPoolExecutor

    with wherry.Runtime(app.draw) as runtime, ThreadPoolExecutor(10) as pool:
        stages = list(
            pool.map(lambda k: list(runtime.stream("draw", digit=k, every=8, seed=k)), range(10))
        )
    grid = np.block(
        [[np.pad(stages[digit][stage], 1) for digit in range(10)] for stage in range(5)]
    )
    return webp(Image.fromarray(grid).resize((1000, 500), Image.Resampling.NEAREST))


def webp(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.thumbnail((2 * WIDTH, 2 * WIDTH))
    image.save(out, "WEBP", quality=82)
    return out.getvalue()


DRAWN: dict[str, Callable[[Any], bytes]] = {
    draw.__name__: draw
    for draw in (search, faces, ocr, speech_to_text, voice, tabular, tools, rag, diffusion)
}


def main(names: Sequence[str]) -> None:
    for name in names or DRAWN:
        picture = DRAWN[name](importlib.import_module(f"examples.{name}.app"))
        ending = "svg" if picture.startswith(b"<svg") else "webp"
        (HERE / name / f"picture.{ending}").write_bytes(picture)
        print(f"{name}/picture.{ending}: {len(picture) / 1000:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
