"""Shell. What a callable of the user's wants to be given."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def call_with(function: Callable[..., Any], *offered: Any) -> Any:
    """Call ``function`` with as many of ``offered`` as it takes, from the first on."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a built-in function that does not tell
        return function(*offered)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return function(*offered)
    return function(*offered[: sum(kind in _POSITIONAL for kind in kinds)])


def parameters_of(function: Callable[..., Any], wanted: type) -> tuple[str, ...]:
    """Return the parameters annotated with ``wanted``, or with a union that has it.

    Annotations that are texts are understood if their names can be resolved, or if
    they are plainly the name of the type.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except Exception:  # noqa: BLE001 - annotations may say anything
        hints = {}
    return tuple(
        name
        for name, parameter in parameters.items()
        if _is_or_has(hints.get(name, parameter.annotation), wanted)
    )


def with_values(
    function: Callable[..., Any], arguments: Arguments, names: tuple[str, ...], value: object
) -> Arguments:
    """Return the arguments with ``value`` for ``names``; raises ``TypeError`` if they don't fit."""
    if not names:
        return arguments
    args, kwargs = arguments
    kwargs = {name: given for name, given in kwargs.items() if name not in names}
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    bound.arguments.update(dict.fromkeys(names, value))
    return bound.args, bound.kwargs


def _is_or_has(annotation: object, wanted: type) -> bool:
    if isinstance(annotation, str):
        parts = annotation.strip("'\"").replace("Optional[", "").replace("]", "").split("|")
        return any(part.strip().rpartition(".")[2] == wanted.__name__ for part in parts)
    return annotation is wanted or wanted in typing.get_args(annotation)
