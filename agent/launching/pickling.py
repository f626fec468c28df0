"""Shell. Functions as bytes, by cloudpickle, with the file names that tracebacks need."""

import io
from collections.abc import Callable
from types import CodeType
from typing import Any, BinaryIO

import cloudpickle


def dumps(value: object) -> bytes:
    """Return ``value`` as bytes for `pickle.load`; raises what the value's types raise."""
    buffer = io.BytesIO()
    dump(value, buffer)
    return buffer.getvalue()


def dump(value: object, file: BinaryIO) -> None:
    """Write ``value`` for `pickle.load`; raises what the value's types or the file raise."""
    _Pickler(file).dump(value)


def _reduce_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[object, ...]]:
    build, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return build_code, (build, values, code.co_filename)


def build_code(build: Callable[..., CodeType], values: tuple[Any, ...], path: str) -> CodeType:
    """Return code as cloudpickle builds it, but of the file at ``path``.

    cloudpickle 3.1.3 and later build all code as of a file "<dynamic-code>".
    """
    return build(*values).replace(co_filename=path)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduce_code})
