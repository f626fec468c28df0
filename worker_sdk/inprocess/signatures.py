"""Shell. What a callable of the user's wants to be given."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def call_with(function: Callable[..., Any], *offered: Any) -> Any:
    """Call ``function`` with as many of ``offered`` as it takes, from the first on."""
    return function(*offered[: _takes(function, len(offered))])


def parameters_of(function: Callable[..., Any], wanted: type) -> tuple[str, ...]:
    """Return the parameters annotated with ``wanted``, or with a union that has it.

    Annotations that are texts are understood if their names can be resolved, or if
    they are plainly the name of the type.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in function that does not tell
        return ()
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except Exception:  # noqa: BLE001 - somebody else's annotations, they may say anything
        hints = {}
    return tuple(
        name
        for name, parameter in parameters.items()
        if _names(hints.get(name, parameter.annotation), wanted)
    )


def with_values(
    function: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    names: tuple[str, ...],
    value: object,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with ``value`` for the parameters in ``names``.

    Raises:
        TypeError: They don't fit the function even so.
    """
    args, kwargs = arguments
    if not names:
        return args, kwargs
    signature = inspect.signature(function)
    kwargs = {name: value for name, value in kwargs.items() if name not in names}
    bound = signature.bind_partial(*args, **kwargs)
    for name in names:
        bound.arguments[name] = value
    # Parameters in the order of the signature, whatever was given by name.
    ordered = {
        name: bound.arguments[name] for name in signature.parameters if name in bound.arguments
    }
    final = inspect.BoundArguments(signature, ordered)
    return _spread(final)


def _spread(bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments; after a gap, all go by keyword."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    is_gap = False
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args.extend(bound.arguments.get(name, ()))
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            kwargs.update(bound.arguments.get(name, {}))
        elif name not in bound.arguments:
            is_gap = True
        elif parameter.kind in _POSITIONAL and not is_gap:
            args.append(bound.arguments[name])
        else:
            kwargs[name] = bound.arguments[name]
    return tuple(args), kwargs


def _takes(function: Callable[..., Any], most: int) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return most
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return most
    return min(most, sum(parameter.kind in _POSITIONAL for parameter in parameters))


def _names(annotation: object, wanted: type) -> bool:
    if annotation is wanted:
        return True
    if isinstance(annotation, str):
        parts = annotation.strip("'\"").replace("Optional[", "").replace("]", "").split("|")
        return any(part.strip().rpartition(".")[2] == wanted.__name__ for part in parts)
    return any(member is wanted for member in typing.get_args(annotation))
