"""Archives of evidence, as one who gets them reads them."""

import tarfile
from pathlib import Path


def unpacked(path: Path) -> dict[str, str]:
    """Return the files of an archive by name, without the folder that all of them are in."""
    texts: dict[str, str] = {}
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert len({member.name.partition("/")[0] for member in members}) == 1
        for member in members:
            assert member.isfile()
            assert member.mode == 0o600
            file = tar.extractfile(member)
            assert file is not None
            texts[member.name.partition("/")[2]] = file.read().decode()
    return texts


def archives_in(directory: Path) -> list[Path]:
    """Return the archives of a directory, by name."""
    return sorted(directory.glob("*.tar.gz"))
