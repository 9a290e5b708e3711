"""Sphinx configuration: `make docs` builds the site without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "src")]

import poise  # noqa: E402

project, author, release = "poise", "the poise contributors", poise.__version__
copyright = f"{author}, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "contents",
    "dataclass_fields",
    "mathsvg",
]
exclude_patterns = ["_ext", "examples"]
suppress_warnings = ["config.cache"]  # the gallery's order is a class, which can't be stored between builds

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

highlight_language = "text"  # of blocks without a language, which show output
default_role = "py:obj"
python_maximum_signature_line_length = 80
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autoclass_content = "class"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "show_memory": False,
    "min_reported_time": 1_000,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}

if os.environ.get("POISE_DOCS_ONLINE"):  # links into other projects; needs their inventories from the network
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }

html_theme = "pydata_sphinx_theme"
html_title = f"poise {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": True,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
}
copybutton_exclude = ".linenos, .gp, .go"
