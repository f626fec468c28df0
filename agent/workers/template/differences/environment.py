"""Pure. Which variables may differ between a worker and its template."""

from __future__ import annotations

from collections.abc import Container, Mapping

# Python, the loader, the C library and libraries of threads read these as they start.
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_"),
)


def read_too_early(
    reads: Container[str], template: Mapping[str, str], worker: Mapping[str, str]
) -> list[str]:
    """Return the variables of a worker that were read while modules were imported."""
    return [name for name, value in worker.items() if template.get(name) != value and name in reads]


def too_late(
    reads: Mapping[str, str], template: Mapping[str, str], worker: Mapping[str, str]
) -> str:
    """Return why a worker with this environment must not be forked; "" if it may.

    ``reads`` has the variables that were read while modules were imported, and by which module;
    ``template`` what they were then.
    """
    for name, value in worker.items():
        if template.get(name) == value:
            continue
        if name in reads:
            return f"{reads[name]} read {name} while preloading, and each worker has its own"
        if name.startswith(_READ_AT_START):
            return f"{name} differs among workers, and is read before they are forked"
    return ""


def after_imports(
    before: Mapping[str, str], after: Mapping[str, str], worker: Mapping[str, str]
) -> dict[str, str]:
    """Return a worker's environment as imports would have left it, had it made them itself."""
    environment = dict(worker)
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name) and environment.get(name) == before.get(name):
            if name in after:
                environment[name] = after[name]
            else:
                environment.pop(name, None)
    return environment
