"""What the page promises that its files show: weight, sources, contrast, text that stays text."""

import re
from itertools import product
from pathlib import Path

import pytest

from drumbeat.coordinator.web.files import ON_DEMAND, VIEWS, Files, needed

PAGE = Path(__file__).parents[3] / "coordinator" / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
BYTES_MAX = 200_000
OF_TEXT, OF_SIGNS = 4.5, 3.0
"""WCAG 2.2 AA: 1.4.3 for text, 1.4.11 for what else carries meaning."""

SURFACES = ("background", "surface", "sunken")
TEXTS = ("text", "muted", "accent", "good", "warning", "bad")


def tokens(theme: str) -> dict[str, str]:
    """Return the colours of a theme by name."""
    style = (PAGE / "style.css").read_text()
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", style)
    return {name: light if theme == "light" else dark for name, light, dark in pairs}


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(theme: str) -> None:
    of = tokens(theme)
    states = [name for name in of if name.startswith("state-")]
    parts = [name for name in of if name.startswith("part-")]
    texts = [
        *product((*TEXTS, *states), SURFACES),
        *product(("text", "warning", "bad"), ("warning-soft",)),
        ("on-accent", "accent"),
        ("on-accent", "bad"),
        *(("on-part", part) for part in parts),
    ]
    signs = [*product((*parts, "control", "focus"), ("background", "surface"))]
    assert [
        f"{one} on {other}: {contrast(of[one], of[other]):.2f}, least {least}"
        for pairs, least in ((texts, OF_TEXT), (signs, OF_SIGNS))
        for one, other in pairs
        if contrast(of[one], of[other]) < least
    ] == []


@pytest.mark.parametrize(
    ("path", "is_job"),
    [
        ("/", False),
        ("/runs/mt5", False),
        ("/runs/ft", True),
        ("/hosts/gpu7", False),
        ("/notifications", False),
        ("/foo", False),
    ],
)
def test_each_view_weighs_less_than_promised(path: str, *, is_job: bool) -> None:
    files = Files()
    page, _ = files.page(path, is_job=is_job)
    names = set(re.findall(r'(?:href|src)="(/[^"]+\.\w+)"', page.content.decode()))
    contents = dict(files.by_path())
    assert {"/main.js", "/style.css", "/base/api.js"} < names
    assert len(page.content) + sum(len(contents[name].content) for name in names) < BYTES_MAX


def test_a_view_loads_what_it_shows_and_no_other_view() -> None:
    contents = {str(path.relative_to(PAGE)): path.read_bytes() for path in FILES}
    views = [set(needed(view, contents)) for view in VIEWS]
    runs, run, job, host, notifications, _ = views
    assert {"host.js", "runs.css"} < host
    assert {"notifications.js", "list/outside.js", "runs.css"} < notifications
    assert {"runs.js", "runs.css"} < runs
    assert {"run.js", "run/timeline.js", "timeline/model.js", "ranks/ranks.css"} < run
    assert {"job.js", "timeline/drawing.js", "runs.css"} < job
    assert [name for name in runs if name.startswith(("run/", "ranks/", "timeline/"))] == []
    assert "runs.js" not in run
    known = set().union(*views)
    assert {name for name in contents if name.endswith((".js", ".css"))} - known == {
        "theme.js",
        "style.css",
        *ON_DEMAND,
    }


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in FILES:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text) == [], path


def test_text_never_becomes_markup() -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    for path in SCRIPTS:
        assert re.findall(ways, path.read_text()) == [], path


def test_what_modules_import_is_there() -> None:
    missing = [
        f"{path.name} imports {name}"
        for path in SCRIPTS
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text())
        if not (path.parent / name).resolve().is_file()
    ]
    assert missing == []
