"""Configure Sphinx: the pages of this folder, and the reference from the docstrings. `nox -s docs` builds them."""

from __future__ import annotations

import os
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import mp_all

project = "mp-all"
author = "the authors of mp-all"
copyright = f"{author}, BSD-3-Clause"
version = release = mp_all.__version__

extensions = [
    "myst_parser",  # the pages are Markdown, readable in the repository too
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # the tables at the top of each page of the reference
    "numpydoc",  # docstrings in the format of the scientific Python world
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "none"  # a block without a language is a drawing

# Links into other projects' documentation need the network during the build: MP_DOCS_INTERSPHINX=1 enables them.
intersphinx = os.environ.get("MP_DOCS_INTERSPHINX") == "1"
if intersphinx:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
    }

# In a docstring, `Block` is a link; each link to one of our names must resolve.
default_role = "py:obj"
nitpicky = True
BUILTINS = r"bool|bytes|float|int|str|MemoryError|OSError|TypeError|ValueError|FutureWarning|TimeoutError"
nitpick_ignore_regex = [(r"py:.*", rf"({BUILTINS})|(numpy|np|multiprocessing|concurrent|ndarray|time|pickle)\..*")]

autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the docstrings describe types in words
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False
# The sections of each docstring: summary, parameters, returned value, examples. -W makes a complaint an error.
numpydoc_validation_checks = {
    "GL06",
    "GL07",
    "GL08",
    "SS01",
    "SS02",
    "SS03",
    "SS05",
    "SS06",
    "PR01",
    "PR02",
    "PR03",
    "RT01",
    "EX01",
}
numpydoc_validation_exclude = {
    r"\.[A-Z]\w*\.",  # methods say in a sentence what they take and return
    r"\.(LeaseReference|ProcessContext|Shared)$",  # made by a function, which describes the parameters
    r"\.(DType|Failure|Segment)$",  # tuples, whose fields are attributes
}
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"mp-all {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_sidebars = {"index": [], "changes": []}


def in_our_packages(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: Element) -> Any:
    """
    Resolve `Block` or `shared.zeros` in a docstring as a name of mp_all, mp_cuda or mp_torch, on any page.
    """
    if node.get("refdomain") != "py":
        return None
    python = env.domains.python_domain
    for package in ("mp_all", "mp_cuda", "mp_torch"):
        name = f"{package}.{node['reftarget']}"
        if name in python.objects:
            return python.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)
    return None


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", in_our_packages)
