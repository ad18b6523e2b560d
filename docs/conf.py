"""Configure Sphinx: the pages of this folder, and the reference from the docstrings. `nox -s docs` builds them."""

from __future__ import annotations

import html
import importlib
import inspect
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import mp_all

project = "mp-all"
author = "the authors of mp-all"
copyright = f"{author}, BSD-3-Clause"
version = release = mp_all.__version__
PACKAGES = Path(__file__).parents[1] / "packages"
URLS = tomllib.loads((PACKAGES / "mp-all" / "pyproject.toml").read_text())["project"]["urls"]

extensions = [
    "myst_parser",  # the pages are Markdown, readable in the repository too
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # the tables at the top of each page of the reference
    "numpydoc",  # docstrings in the format of the scientific Python world
    "sphinx.ext.linkcode",  # from a name of the reference to its source
    "sphinx_copybutton",
    "sphinxext.opengraph",  # titles and descriptions for link previews
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "none"  # a block without a language is a drawing

# A button copies commands without prompts and without their output; blocks of output and drawings have no button.
copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d+\]: "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text):not(.highlight-none) > div.highlight > pre"

ogp_site_url = URLS["Documentation"]
ogp_site_name = "mp-all"
ogp_social_cards = {"enable": False}  # a card needs matplotlib and a font, and shows the title once more

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
OTHERS = r"numpy|np|multiprocessing|concurrent|ndarray|time|pickle"
nitpick_ignore_regex = [(r"py:.*", rf"({BUILTINS})|.*\.HasOptions|({OTHERS})\..*")]

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
    r"\.(LeaseReference|ProcessContext|RunningJob|Shared)$",  # made by a function, which describes the parameters
    r"\.(DType|Failure|Segment)$",  # tuples, whose fields are attributes
}
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"mp-all {release}"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_context = {
    "groups": [
        ("tutorial", "Get started"),
        ("guide", "How-to guides"),
        ("inside", "Explanation"),
        ("reference/index", "Reference"),
    ]
}
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo-dark.svg",
        "text": html_title,
        "alt_text": "mp-all",
    },
    "navbar_center": ["groups"],
    "github_url": URLS["Source"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_sidebars = {"index": [], "**": ["pages"]}


def in_our_packages(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: Element) -> Any:
    """
    Resolve `Block` or `shared.zeros` in a docstring as a name of mp_all, mp_cuda, mp_nodes or mp_torch, on any page.
    """
    if node.get("refdomain") != "py":
        return None
    python = env.domains.python_domain
    for package in ("mp_all", "mp_cuda", "mp_nodes", "mp_torch"):
        name = f"{package}.{node['reftarget']}"
        if name in python.objects:
            return python.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)
    return None


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """
    Return the address of the lines that define a name of ours; None for a name of the standard library or of C.
    """
    try:
        found: Any = importlib.import_module(info["module"])
        for name in info["fullname"].split("."):
            found = getattr(found, name)
        found = inspect.unwrap(found.fget if isinstance(found, property) else found)
        package = found.__module__.partition(".")[0]
        path, (lines, first) = Path(inspect.getfile(found)), inspect.getsourcelines(found)
    except (ImportError, AttributeError, TypeError, OSError):
        return None
    project = package.replace("_", "-")
    if not (PACKAGES / project).is_dir():
        return None
    # The package may be installed elsewhere.
    inside = path.relative_to(Path(str(importlib.import_module(package).__file__)).parent)
    commit = os.environ.get("READTHEDOCS_GIT_COMMIT_HASH", "main")
    last = first + len(lines) - 1
    return f"{URLS['Source']}/blob/{commit}/packages/{project}/src/{package}/{inside}#L{first}-L{last}"


BODY = (nodes.section, nodes.container)  # the parents of a paragraph that is in no table or list


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """
    Make the first sentences of a page its description, as many as search engines show.

    sphinxext.opengraph would cut the text inside a sentence. A description in the front matter of a page would stand
    above the page, as a table, where the repository is browsed.
    """
    if doctree is None:  # the index, the search
        return
    paragraphs = doctree.findall(lambda node: isinstance(node, nodes.paragraph) and isinstance(node.parent, BODY))
    text = next(found.astext() for found in paragraphs).replace("\n", " ")
    description, *more = re.split(r"(?<=[.]) ", text)
    for sentence in more:
        if len(description) + len(sentence) >= 200 or sentence.endswith(":"):
            break
        description += f" {sentence}"
    context["meta"] = {**(context["meta"] or {}), "og:description": description}
    context["metatags"] += f'<meta name="description" content="{html.escape(description)}" />'


def leave_out_private(app: Sphinx, name: str, kind: type, options: object, bases: list[type]) -> None:
    """Leave out the base classes of a module that is not public."""
    bases[:] = [base for base in bases if "._" not in base.__module__] or [object]


PROGRAM = re.compile(r"(?m)^\[`examples/.*`\]\((\.\./examples/.*\.py)\)$")
PART = re.compile(r"<!-- site: (\S+) -->.*?<!-- /site -->", re.DOTALL)


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """
    Show a program in the place of the line that links to it, and a file of _templates in the place of a part.

    Where the repository is browsed, the link and the part are shown, as nobody reads directives there.
    """
    text = PROGRAM.sub(r"```{literalinclude} \1\n:language: python\n```", source[0])
    source[0] = PART.sub(lambda found: (Path(app.srcdir) / "_templates" / f"{found[1]}.md").read_text(), text)


def setup(app: Sphinx) -> None:
    app.connect("source-read", complete)
    app.connect("missing-reference", in_our_packages)
    app.connect("autodoc-process-bases", leave_out_private)
    app.connect("html-page-context", describe, priority=400)  # before sphinxext.opengraph, which then adds none
