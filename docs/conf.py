from rnnop._version import __version__

project = "rnnop"
author = "the rnnop authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"rnnop {version}"

# Signatures carry the types; the docstrings say what they mean.
autodoc_typehints = "none"
# One page a name: a class's members are in its own docstring.
numpydoc_show_class_members = False
