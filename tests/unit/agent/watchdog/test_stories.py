"""Scripted stories of the watchdog's core, with what came of each command below it.

A story is a line ``== title`` and commands; see ``tests/support/watch_script.py``. With the option
``--rewrite`` the output is written anew; what changed is then to be read in the diff.
"""

from pathlib import Path

import pytest

from tests.support.watch_script import WatchScript

HERE = Path(__file__).parent / "stories"
TITLE = "== "


def stories(path: Path) -> list[tuple[str, str]]:
    """Return the titles and texts of a file."""
    _, *texts = f"\n{path.read_text()}".split(f"\n{TITLE}")
    return [
        (title, text.strip("\n") + "\n") for title, _, text in (t.partition("\n") for t in texts)
    ]


STORIES = [(path, *story) for path in sorted(HERE.glob("*.txt")) for story in stories(path)]


@pytest.mark.parametrize(
    ("path", "title", "text"), STORIES, ids=[f"{path.stem}: {title}" for path, title, _ in STORIES]
)
def test_story(path: Path, title: str, text: str, request: pytest.FixtureRequest) -> None:
    output = WatchScript().play(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(
            path.read_text().replace(f"{TITLE}{title}\n{text}", f"{TITLE}{title}\n{output}")
        )
        return
    assert output == text


def test_titles_are_unique_and_no_story_is_lost() -> None:
    titles = [title for _, title, _ in STORIES]
    assert len(titles) == len(set(titles)) >= 100
