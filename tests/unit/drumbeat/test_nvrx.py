"""``drumbeat.nvrx`` says in one error what it misses."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("package", ["nvidia_resiliency_ext", "torch"])
def test_a_package_that_is_not_installed_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvidia_resiliency_ext")
    monkeypatch.delitem(sys.modules, "drumbeat.nvrx", raising=False)
    for name in [name for name in sys.modules if name.startswith("nvidia_resiliency_ext")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"drumbeat.nvrx needs torch and .*{package}"):
        importlib.import_module("drumbeat.nvrx")
