"""The documentation as a site: built strictly, and complete without any other host."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import ROOT

pytestmark = pytest.mark.slow

_LOADED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)""")


def test_pages_load_nothing_from_other_hosts(cluster: Cluster, tmp_path: Path) -> None:
    mkdocs = str(Path(sys.executable).with_name("mkdocs"))
    built = cluster.command("mkdocs", mkdocs, "build", "--strict", "--site-dir", str(tmp_path))
    assert built.wait() == 0, built.log()
    pages = {
        page.relative_to(tmp_path).with_suffix(".md"): page for page in tmp_path.rglob("*.html")
    }
    assert {page.relative_to(ROOT / "docs") for page in ROOT.glob("docs/*.md")} <= set(pages)
    for page in pages.values():
        loaded = ["".join(groups) for groups in _LOADED.findall(page.read_text())]
        assert loaded
        assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == [], page.name
        assert [
            address for address in loaded if not (page.parent / address.lstrip("/")).is_file()
        ] == [], page
