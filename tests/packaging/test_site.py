"""The documentation's site: descriptions, links to the source, and the first screen in a browser."""

from __future__ import annotations

import functools
import html
import http.server
import importlib.util
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest
from support.scripts import run_python

ROOT = Path(__file__).parents[2]
NEEDED = ["sphinx", "myst_parser", "numpydoc", "pydata_sphinx_theme", "sphinx_copybutton", "sphinxext"]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (nox -s docs has them)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages."""
    out = tmp_path_factory.mktemp("site")
    done = run_python("-m", "sphinx", "-q", "-b", "html", str(ROOT / "docs"), str(out), timeout=110)
    assert done.returncode == 0, done.stderr
    return out


def pages(site: Path) -> list[Path]:
    without_text = {"genindex.html", "search.html"}
    return [
        page for folder in (site, site / "reference") for page in folder.glob("*.html") if page.name not in without_text
    ]


def test_each_page_has_one_description_of_whole_sentences(site: Path) -> None:
    assert len(pages(site)) > 40
    for page in pages(site):
        text = page.read_text()
        described = re.findall(r'<meta name="description" content="([^"]*)"', text)
        assert len(described) == 1, page.name
        assert len(described[0]) >= 40 and described[0][-1] in ".?", f"{page.name}: {described[0]}"
        assert f'<meta property="og:description" content="{described[0]}"' in text, page.name


def test_a_name_of_the_reference_links_to_the_lines_that_define_it(site: Path) -> None:
    links = re.findall(
        r'href="https://[^"]+/blob/main/([^"#]+)#L(\d+)-L(\d+)"', (site / "reference/arrays.html").read_text()
    )
    lines = {path: (ROOT / path).read_text().splitlines() for path, _, _ in links}
    linked = [lines[path][int(begin) - 1 : int(end)] for path, begin, end in links]
    assert [found[0] for found in linked if not re.match(r"\s*(@|def |class )", found[0])] == []
    assert any(line.startswith("def zeros(") for found in linked for line in found[:2])


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address at which a browser finds the pages."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


# A page of its own shows one of ours in a frame, whose size no window manager changes, and writes what it sees.
FRAME = """<!doctype html>
<iframe id="frame" src="index.html" width="{width}" height="{height}"></iframe><pre id="seen"></pre>
<script>
window.onload = () => {{
    const page = document.getElementById("frame").contentDocument;
    const visible = (selector) => [...page.querySelectorAll(selector)].filter((element) => {{
        const {{top, bottom, left, right, height}} = element.getBoundingClientRect();
        return height > 0 && top >= 0 && bottom <= {height} && left >= 0 && right <= {width};
    }});
    document.getElementById("seen").textContent = JSON.stringify({{
        cut: [...page.querySelectorAll("article :is(p, ul, pre, img, table):not(td *)")].filter(
            (element) => element.getBoundingClientRect().right > {width}).map((element) => element.outerHTML),
        texts: visible("p, pre, li").map((element) => element.innerText),
        pictures: visible("article img").map((element) => element.getAttribute("src")),
    }});
}};
</script>"""
SHELL = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


class Seen(TypedDict):
    """The landing page in a window: texts and pictures that are whole on the first screen."""

    cut: list[str]  # elements that are wider than the window, anywhere on the page
    texts: list[str]
    pictures: list[str]


def seen(site: Path, address: str, profile: Path, width: int, height: int) -> Seen:
    """Return the contents of the landing page's first screen in a window of that size."""
    assert BROWSER is not None
    (site / "frame.html").write_text(FRAME.format(width=width, height=height))
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", f"--user-data-dir={profile}"]
    options.append(f"--window-size={2 * width},{2 * height}")
    done = run_python("-c", SHELL, BROWSER, *options, "--dump-dom", f"{address}/frame.html", timeout=100)
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    answer: Seen = json.loads(html.unescape(found[1]))
    return answer


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser: chromium or google-chrome")


@needs_browser
def test_the_first_screen_has_sentence_install_line_program_numbers_and_picture(
    site: Path, address: str, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    program = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    gains = re.findall(r"^- (.+): \*\*(.+)\*\*$", readme, re.MULTILINE)
    assert program and gains
    shown = seen(site, address, tmp_path, 1440, 900)
    texts = [" ".join(text.split()) for text in shown["texts"]]
    assert any(text.startswith("Change import multiprocessing to import mp_all as multiprocessing") for text in texts)
    assert "pip install ./packages/* mp-all demo" in texts
    assert " ".join(program[1].split()) in texts
    for what, number in gains:
        assert f"{what.replace('`', '')}: {number}" in texts
    assert any("hero" in picture for picture in shown["pictures"])


@needs_browser
def test_the_landing_page_fits_the_width_of_a_phone(site: Path, address: str, tmp_path: Path) -> None:
    shown = seen(site, address, tmp_path, 390, 844)
    assert shown["texts"] != [] and shown["cut"] == []


def test_a_program_and_a_directive_are_on_the_site_and_not_where_the_repository_is_browsed(site: Path) -> None:
    assert (site / "examples.html").read_text().count("highlight-python") == 15
    for page in (ROOT / "docs").glob("*.md"):
        assert not re.search(r"^(```\{|:::)", page.read_text(), re.MULTILINE), page.name
    for name, text in (
        ("changes", "Unreleased"),
        ("contributing", "./do"),
        ("libshm", "slab"),
        ("strategies", "macOS"),
    ):
        assert text in (site / f"{name}.html").read_text(), name
    assert "https://github.com/" in re.search(r"<header.*?</header>", (site / "index.html").read_text(), re.DOTALL)[0]  # type: ignore[index]
