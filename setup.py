"""Shell. Builds packages; what is special is that source archives keep the links of `src`.

setuptools would copy every file below a link a second time (docs/adr/0047-import-names.md).
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

LINKS = {path: path.readlink() for path in Path("src").rglob("*") if path.is_symlink()}


class SourceArchive(sdist):
    """A source archive like a checkout."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Make the tree that is archived, with links in the place of what is below them."""
        own = [name for name in files if not {Path(name), *Path(name).parents} & LINKS.keys()]
        super().make_release_tree(base_dir, own)
        for path, target in LINKS.items():
            Path(base_dir, path).symlink_to(target)


setup(cmdclass={"sdist": SourceArchive})
