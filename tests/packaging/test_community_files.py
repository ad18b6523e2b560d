"""The files around the code: policies, templates, recipes and addresses agree with the packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mp_core

ROOT = Path(__file__).parents[2]
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
OUTPUTS = {output["package"]["name"]: output for output in RECIPE["outputs"]}
SOURCE = PROJECTS["mp-all"]["urls"]["Source"]


def test_every_package_has_the_same_addresses() -> None:
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} == set(PROJECTS["mp-all"]["urls"])
    assert [name for name, project in PROJECTS.items() if project["urls"] != PROJECTS["mp-all"]["urls"]] == []


@pytest.mark.parametrize("name", PROJECTS)
def test_each_link_of_a_package_works_on_pypi(name: str) -> None:
    """PyPI shows the README without the repository: a link is absolute, and one to a file of ours names a file."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "packages" / name / "README.md").read_text())
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.removeprefix(f"{SOURCE}/blob/main/") for link in links if link.startswith(f"{SOURCE}/blob/main/")]
    assert [path for path in ours if not (ROOT / path.partition("#")[0]).is_file()] == []


def test_the_bug_templates_ask_for_the_report() -> None:
    for name in ("bug", "slow"):
        template = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        report = next(field for field in template["body"] if field.get("id") == "report")
        assert "python -m mp_all" in report["attributes"]["label"]
        assert report["validations"]["required"] is True


def test_the_citation_has_the_version_and_the_address() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["repository-code"]) == (mp_core.__version__, SOURCE)


def test_read_the_docs_installs_every_package() -> None:
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert settings["sphinx"]["fail_on_warning"] is True
    installed = {
        word.removeprefix("./packages/") for line in settings["build"]["jobs"]["install"] for word in line.split()
    }
    assert set(PROJECTS) <= installed


def test_the_recipe_has_every_package_in_the_one_version() -> None:
    assert set(OUTPUTS) == set(PROJECTS)
    assert RECIPE["context"]["version"] == mp_core.__version__


@pytest.mark.parametrize("name", PROJECTS)
def test_the_recipe_of_a_package_needs_what_the_package_needs(name: str) -> None:
    needed = {re.split(r"[<>=;\s]", line)[0] for line in PROJECTS[name]["dependencies"]}
    text = " ".join(OUTPUTS[name]["requirements"]["run"])
    found = {word for word in re.findall(r"[a-z][a-z-]+", text.replace("pin_subpackage", "")) if word in needed}
    assert found == needed
    scripts = [f"{key} = {value}" for key, value in PROJECTS[name].get("scripts", {}).items()]
    assert OUTPUTS[name]["build"].get("python", {}).get("entry_points", []) == scripts
