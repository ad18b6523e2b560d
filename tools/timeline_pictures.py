"""Make the pictures of the documents that show timelines: `python -m tools.timeline_pictures`, on a quiet machine.

They are photographs of reports in a browser: chromium or google-chrome.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def photograph(report: Path, picture: str, height: int) -> None:
    """Write the top of a report, 1200 pixels wide, into docs/img."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if browser is None:
        raise SystemExit("no browser: install chromium or google-chrome")
    size = f"--window-size=1200,{height}"
    target = f"--screenshot={ROOT / 'docs/img' / picture}"
    plain = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={report.parent}/profile",
    ]
    subprocess.run([browser, *plain, size, target, report.as_uri()], check=True, capture_output=True, timeout=120)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        report = folder / "run.html"
        (program,) = re.findall(
            r"```python\n(# divisors\.py\n.*?)```", (ROOT / "docs/timeline.md").read_text(), re.DOTALL
        )
        (folder / "divisors.py").write_text(program)
        for chunk, picture, height in (("40", "timeline-uneven.png", 500), ("2", "timeline-even.png", 500)):
            subprocess.run([sys.executable, "divisors.py", chunk], cwd=folder, check=True)
            photograph(report, picture, height)


if __name__ == "__main__":
    main()
