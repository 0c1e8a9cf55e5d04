"""How does the site look? Read by Sphinx, which finds the pages in the folder of `sources`."""

from pathlib import Path

from sphinx.application import Sphinx

from tools.site.sources import COPIES, write_search
from wherry import __version__

HERE = Path(__file__).parent

project = "wherry"
version = release = __version__
html_title = f"wherry {__version__}"
html_theme = "furo"
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["site.css"]
templates_path = ["templates"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_theme_options = {"navigation_with_keys": True}
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = [f"{COPIES}/**"]

# Of a session at a terminal only what is typed is copied.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "EOF"

# The anchors of a forge: readers of the Markdown and of the site have the same ones.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

#: Languages that our pages name and the highlighter does not know.
pygments_style = "default"
suppress_warnings = ["misc.highlighting_failure"]


def _write_search(app: Sphinx, failure: Exception | None) -> None:
    if failure is None:
        write_search(HERE.parents[1], Path(app.outdir, "_static/sections.js"))


def setup(app: Sphinx) -> None:
    app.connect("build-finished", _write_search)
