"""What a merge can lose in the documentation without any code noticing."""

import re
import tomllib
from pathlib import Path

from drumbeat import VERSION
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.adaptive_timeouts import LearningRules
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import common_pb2
from scripts import gen_settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
_FENCE = re.compile(r"^(```+)(\w*)\s*$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def test_every_code_fence_of_a_page_closes() -> None:
    for page in PAGES:
        fences = _FENCE.findall(page.read_text())
        assert len(fences) % 2 == 0, page
        assert not any(language for _, language in fences[1::2]), f"{page}: one with a language"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in _LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_page_has_two_headings_of_the_same_text() -> None:
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert sorted(set(headings)) == sorted(headings), page


def test_limits_that_the_protocol_names_exist() -> None:
    named = re.findall(r"`([a-z_]+_(?:max|min|least|s))`", (ROOT / "docs/protocol.md").read_text())
    known = {
        field for limits in (Limits, Policy, LearningRules) for field in limits.__struct_fields__
    }
    assert len(named) > 10
    assert set(named) <= known


def test_the_protocol_lists_each_refusal_once() -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    named = re.findall(r"^\|.*\| `(REFUSAL_\w+)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted(set(common_pb2.Refusal.keys()) - {"REFUSAL_UNSPECIFIED"})


def test_the_record_of_dependencies_has_each() -> None:
    record = (ROOT / "docs/adr/0010-dependencies.md").read_text()
    requirements = list(PROJECT["dependencies"])
    for extra in EXTRAS.keys() - {"demo", "dist", "docs", "examples", "test"}:
        assert f"`{extra}`" in record
        requirements += EXTRAS[extra]
    for requirement in requirements:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert name == "drumbeat" or re.search(rf"[ |]{name}[ ,|]", record), name


INSTALLS = [
    (path.relative_to(ROOT), command)
    for path in (*PAGES, *ROOT.glob("deploy/**/*"), *ROOT.glob("src/*.md"))
    if path.is_file() and path.suffix != ".pyc"
    for command in re.findall(
        r"pip (?:install|wheel)([^`\n#&]*)", path.read_text().replace("\\\n", "")
    )
    if re.search("drumbeat|/src", command)
]


def test_installations_do_not_need_an_index_that_has_drumbeat() -> None:
    """They name a clone in the current folder, a folder in an image, or a wheel."""
    wheel = f"drumbeat-{VERSION}-py3-none-any.whl"
    for path, command in INSTALLS:
        words = [word.strip("'\"") for word in command.split()]
        (named,) = [word for word in words if re.search("drumbeat|/src", word)]
        folder, _, extras = named.removesuffix("]").partition("[")
        assert folder in {"./drumbeat", "/src", wheel, f"/wheel/{wheel}"}, path
        assert set(filter(None, extras.split(","))) <= EXTRAS.keys(), path


def test_hints_add_extras_to_the_drumbeat_that_is_installed() -> None:
    texts = {
        module.relative_to(ROOT): module.read_text()
        for package in ("agent", "coordinator", "worker_sdk", "src/drumbeat")
        for module in ROOT.glob(f"{package}/**/*.py")
    }
    assert [str(path) for path, text in texts.items() if "pip install" in text] == [
        "src/drumbeat/text/format.py"
    ], "others call its function"
    call = re.compile(
        r"install_command\([\"'](\w+)|MissingExtra\(.*, \"(\w+)\"\)|[Tt]he extra (\w+)"
    )
    named = {"".join(groups) for text in texts.values() for groups in call.findall(text)}
    assert len(named) > 5
    assert named <= EXTRAS.keys()


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
