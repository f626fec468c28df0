"""Shell. What a callable of the user's wants to be given."""

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def call_with(function: Callable[..., Any], *offered: Any) -> Any:
    """Call ``function`` with as many of ``offered`` as it takes, from the first on."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a built-in function that does not tell
        return function(*offered)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return function(*offered)
    return function(*offered[: sum(kind in _POSITIONAL for kind in kinds)])


def with_instance(call: partial[Any], instance: object) -> partial[Any]:
    """Give ``instance`` for each parameter annotated with its class, or with a union that has it.

    Annotations that are texts are understood if their names can be resolved, or if
    they are plainly the name of the class.
    """
    try:
        signature = inspect.signature(call.func)
    except (TypeError, ValueError):
        return call
    try:
        hints = typing.get_type_hints(inspect.unwrap(call.func))
    except Exception:  # noqa: BLE001 - annotations may say anything
        hints = {}
    wanted = type(instance)
    names = [
        name
        for name, parameter in signature.parameters.items()
        if _is_or_has(hints.get(name, parameter.annotation), wanted)
    ]
    if not names:
        return call
    others = {name: given for name, given in call.keywords.items() if name not in names}
    bound = signature.bind_partial(*call.args, **others)
    bound.arguments.update(dict.fromkeys(names, instance))
    return partial(call.func, *bound.args, **bound.kwargs)


def _is_or_has(annotation: object, wanted: type) -> bool:
    if isinstance(annotation, str):
        parts = annotation.strip("'\"").replace("Optional[", "").replace("]", "").split("|")
        return any(part.strip().rpartition(".")[2] == wanted.__name__ for part in parts)
    return annotation is wanted or wanted in typing.get_args(annotation)
