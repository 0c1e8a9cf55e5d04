"""How does the site look? Read by Sphinx, which finds the pages in the folder of `sources`."""

from pathlib import Path

from tools.site.sources import COPIES
from wherry import __version__

project = "wherry"
version = release = __version__
html_title = f"wherry {__version__}"
html_theme = "furo"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
extensions = ["myst_parser"]
exclude_patterns = [f"{COPIES}/**"]

# The anchors of a forge: readers of the Markdown and of the site have the same ones.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

#: Languages that our pages name and the highlighter does not know. A diagram is shown as its
#: source: a script that draws it would be a megabyte, or would come from somebody's server.
pygments_style = "default"
suppress_warnings = ["misc.highlighting_failure"]
