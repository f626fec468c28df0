"""What a merge can lose in the documentation without any code noticing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import gen_settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCE = re.compile(r"^(```+)(\w*)\s*$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_fence_of_a_page_closes(page: Path) -> None:
    fences = _FENCE.findall(page.read_text())
    assert len(fences) % 2 == 0
    assert not any(language for _, language in fences[1::2]), "a fence closes with a language"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pages_that_hints_name_exist() -> None:
    named = {
        name
        for package in ("agent", "coordinator", "worker_sdk", "src/drumbeat")
        for module in ROOT.glob(f"{package}/**/*.py")
        for name in re.findall(r"docs/[\w/-]+\.md", module.read_text())
    }
    assert "docs/errors.md" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_page_that_a_report_without_message_points_to_tells_how_to_record_one() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings[:4] == [
        "Record what your program raises",
        "Crashes",
        "A launcher within a worker",
        "The format",
    ]
    assert "from worker_sdk import record" in page
    assert '{"message": {"message":' in page


def test_the_reference_of_settings_is_that_of_their_declarations() -> None:
    """`make gen` writes it anew."""
    assert gen_settings.PAGE.read_text() == gen_settings.page()


def test_the_index_of_decisions_has_each_with_its_summary() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    for page in sorted(ROOT.glob("docs/adr/0*.md")):
        summary = page.read_text().splitlines()[2]
        assert summary.startswith("> "), page.name
        decision, _, status = summary.removeprefix("> ").removesuffix(".").partition(" Status: ")
        assert f"| [{int(page.name[:4])}]({page.name}) | {decision} | {status} |" in index


def test_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:agent|coordinator|worker_sdk|src|tests|proto)/[\w./]*)`", page)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
