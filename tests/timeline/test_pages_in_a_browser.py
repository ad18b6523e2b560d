"""The page of a run in a browser: it opens from disk, shows what the run did, and can be moved, searched and sorted."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from recorded import data_of
from support.scripts import run_python, run_script, succeeded

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: chromium or google-chrome")
HOSTILE = "<script>document.title = 'taken'</script>"

PROGRAM = f"""
    import time
    import mp_all as mp

    def slow(x):
        time.sleep(0.3)
        return x

    def quick(x):
        time.sleep(0.02)

    def hostile(x):
        raise ValueError({HOSTILE!r})

    hostile.__qualname__ = {HOSTILE!r}

    def child(queue):
        time.sleep(0.3)
        queue.put(1)

    if __name__ == "__main__":
        context = mp.get_context("fork")
        with mp.timeline("run.html"):
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,), name={HOSTILE!r})
            process.start()
            queue.get()
            process.join()
            with context.Pool(2) as pool:
                pool.map(slow, range(4), chunksize=1)
                pool.map(quick, range(6), chunksize=1)
                failed = pool.apply_async(hostile, (1,))
                failed.wait()
"""

# A page of the test shows the report in a frame, does what a user would do, and writes what it sees.
VISIT = """<!doctype html>
<iframe id="frame" src="run.html" width="1200" height="900"></iframe><img src="until-the-answer">
<script>
const frame = document.getElementById("frame"), seen = { errors: [] };
const turn = () => new Promise((done) => frame.contentWindow.requestAnimationFrame(() => setTimeout(done)));
const pause = async () => { await turn(); await turn(); }; // it draws in the next frame
frame.onload = async () => {
  try { await visit(frame.contentWindow, frame.contentDocument); } catch (error) { seen.errors.push(String(error)); }
  await fetch("answer", { method: "POST", body: JSON.stringify(seen) });
};
async function visit(window, page) {
  window.onerror = (message) => seen.errors.push(message);
  const $ = (id) => page.getElementById(id), lanes = $("lanes");
  const drawn = () => [...lanes.getContext("2d").getImageData(0, 0, lanes.width, lanes.height).data].join();
  const texts = (row) => [...row.cells].map((cell) => cell.innerText);
  const rows = (id) => [...$(id).querySelectorAll("tbody tr")].map(texts);
  const key = async (key) => { lanes.dispatchEvent(new window.KeyboardEvent("keydown", { key })); await pause(); };
  const color = (name) => window.getComputedStyle(page.documentElement).getPropertyValue(name).trim();
  await pause();
  seen.title = page.title;
  seen.back = color("--back");
  seen.sentences = [...$("sentences").children].map((item) => item.innerText);
  seen.workers = rows("workers");
  seen.tasks = rows("tasks");
  seen.scripts = page.querySelectorAll("script").length;
  seen.fetched = window.performance.getEntriesByType("resource").map((entry) => entry.name);

  const whole = drawn(), pixels = lanes.getContext("2d").getImageData(0, 0, lanes.width, lanes.height).data;
  const [r, g, b] = color("--task").match(/[0-9a-f]{2}/g).map((two) => parseInt(two, 16));
  const columns = new Set();
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i] === r && pixels[i + 1] === g && pixels[i + 2] === b) columns.add(i / 4 % lanes.width);
  seen.task_columns = columns.size;

  await key("+"); const nearer = drawn();
  await key("ArrowRight"); const moved = drawn();
  await key("0");
  seen.keys = [nearer !== whole, moved !== nearer, drawn() === whole];
  lanes.dispatchEvent(new window.WheelEvent("wheel", { deltaY: -400, clientX: 600, clientY: 300, cancelable: true }));
  await pause(); const wheeled = drawn();
  $("all").click(); await pause();
  seen.mouse = [wheeled !== whole, drawn() === whole];

  const box = lanes.getBoundingClientRect();
  seen.tips = [];
  for (let y = 4; y < box.height; y += 8) for (let x = 2; x < box.width; x += 12) {
    lanes.dispatchEvent(new window.PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
    const text = $("tip").style.display === "block" ? $("tip").innerText : "";
    if (text && !seen.tips.includes(text)) seen.tips.push(text);
  }
  lanes.dispatchEvent(new window.PointerEvent("pointerleave")); await pause();

  $("search").value = "quick"; $("search").dispatchEvent(new window.Event("input")); await pause();
  seen.found = [$("matches").innerText, rows("tasks"), drawn() !== whole];
  $("search").dispatchEvent(new window.KeyboardEvent("keydown", { key: "Enter" })); await pause();
  $("search").value = ""; $("search").dispatchEvent(new window.Event("input"));
  seen.sorted = [];
  for (let i = 0; i < 2; i++) {
    $("tasks").querySelector("th button").click();
    seen.sorted.push(rows("tasks").map((cells) => cells[0]));
  }
}
</script>"""
SHELL = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


class Server(http.server.ThreadingHTTPServer):
    """The files of a folder; the browser waits for its last picture until the visitor has answered."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.answer, self.answered = b"", threading.Event()


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.answer = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.answered.set()
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        if self.path == "/until-the-answer":
            self.server.answered.wait(60)
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def browse(address: str, profile: Path, *options: str) -> tuple[str, list[str]]:
    """Return the page as the browser has it when it has loaded, and what the console says."""
    assert BROWSER is not None
    always = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={profile}"]
    done = run_python("-c", SHELL, BROWSER, *always, *options, "--dump-dom", address, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line and "/visit.html" not in line]


def visited(folder: Path, profile: Path, *options: str) -> dict[str, Any]:
    """Return what the visitor has seen of the report in *folder*."""
    (folder / "visit.html").write_text(VISIT)
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            _, console = browse(f"http://127.0.0.1:{server.server_address[1]}/visit.html", profile, *options)
        finally:
            server.shutdown()
            thread.join()
    answer: dict[str, Any] = json.loads(server.answer)
    assert answer["errors"] == [] and console == []
    return answer


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report."""
    folder = tmp_path_factory.mktemp("run")
    succeeded(run_script(folder, PROGRAM))
    return folder


@pytest.fixture(scope="module")
def page(report: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a visitor of a light page sees."""
    return visited(report, tmp_path_factory.mktemp("profile"), "--blink-settings=preferredColorScheme=1")


def test_the_page_opens_from_disk_without_a_word_in_the_console(report: Path, tmp_path: Path) -> None:
    text, console = browse((report / "run.html").as_uri(), tmp_path)
    assert console == []
    assert "11 tasks" in text
    assert "http" not in (report / "run.html").read_text().replace("http-equiv", "")


def test_lanes_spans_and_tables_show_the_run_and_names_stay_text(report: Path, page: dict[str, Any]) -> None:
    assert page["title"].startswith("Timeline of") and page["scripts"] == 2 and page["fetched"] == []
    assert sorted(row[0] for row in page["tasks"]) == [HOSTILE, *["quick"] * 6, *["slow"] * 4]
    assert {row[-1] for row in page["tasks"] if row[0] == HOSTILE} == {"error"}
    assert len(page["workers"]) == 2 and sum(int(row[2]) for row in page["workers"]) == 11
    end = data_of(report / "run.html")["end"]
    assert page["task_columns"] >= 500 * 600_000 / end  # two workers slept for 0.6 s of it
    assert any("slow" in tip for tip in page["tips"]) and any("wait.get" in tip for tip in page["tips"])
    assert any(HOSTILE in tip for tip in page["tips"])
    assert any("workers lived for" in sentence for sentence in page["sentences"])


def test_keys_wheel_and_buttons_move_the_picture_and_bring_it_back(page: dict[str, Any]) -> None:
    assert page["keys"] == [True, True, True]
    assert page["mouse"] == [True, True]


def test_the_search_finds_tasks_and_the_table_sorts(page: dict[str, Any]) -> None:
    matches, rows, changed = page["found"]
    assert matches == "6 found" and {row[0] for row in rows} == {"quick"} and changed
    upwards = [HOSTILE, *["quick"] * 6, *["slow"] * 4]
    assert page["sorted"] == [upwards, upwards[::-1]]


def test_the_page_is_light_or_dark_as_the_system_is(report: Path, page: dict[str, Any], tmp_path: Path) -> None:
    dark = visited(report, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (page["back"], dark["back"]) == ("#fff", "#15181d")
    assert dark["task_columns"] > 0
