import sys
from pathlib import Path

from rnnop._version import __version__

sys.path.insert(0, str(Path(__file__).parent))
import tables

project = "rnnop"
author = "the rnnop authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["_build"]
nitpicky = True
default_role = "code"  # what docstrings put in single quotes is a name or a value

html_theme = "furo"
html_title = f"rnnop {version}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
# Tables that are made anew from the sources they describe.
myst_substitutions = {"flags": tables.flags(), "tolerances": tables.tolerances()}

# Signatures carry the types; the docstrings say what they mean.
autodoc_typehints = "none"
# All names are on one page.
autosummary_generate = False
# A class's members are in its own docstring, or where api.md asks for them.
numpydoc_show_class_members = False
highlight_language = "text"  # of a block that does not say: equations in docstrings

plot_formats = ["svg"]
plot_html_show_formats = False
plot_html_show_source_link = False
