"""Shell. What a user gives, checked, and what the user's callables want to be given."""

import contextlib
import inspect
import itertools
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from worker_sdk.timers import duration_ns

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Duration = timedelta | float  # a number is in seconds
DURATION_MAX_S = 365 * 24 * 3600.0

# Durations of a `Wrapper`: the left one must be below the right one.
_BELOW = (
    ("soft_timeout", "hard_timeout"),
    ("hard_timeout", "barrier_timeout"),
    ("heartbeat_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout"),
    ("monitor_process_interval", "heartbeat_timeout"),
    ("monitor_thread_interval", "soft_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)
_ALSO = ("completion_timeout", "termination_grace_time")


def timing(given: Mapping[str, Any]) -> dict[str, float]:
    """Return a wrapper's durations in seconds; raises ``TypeError`` and ``ValueError``."""
    values = {name: seconds(name, given[name]) for name in (*itertools.chain(*_BELOW), *_ALSO)}
    wait = given["last_call_wait"]
    is_0 = wait in (0, timedelta()) and not isinstance(wait, bool)
    values["last_call_wait"] = 0.0 if is_0 else seconds("last_call_wait", wait, "or 0")
    for less, more in _BELOW:
        if not values[less] < values[more]:
            raise ValueError(
                f"{less} must be below {more}, but {less} is {values[less]:g} s"
                f" and {more} is {values[more]:g} s"
            )
    return values


def seconds(name: str, value: object, alternatives: str = "") -> float:
    """Return a duration in seconds; raises ``TypeError`` and ``ValueError``."""
    duration_s = duration_ns(name, value, alternatives) / 1e9
    if duration_s > DURATION_MAX_S:
        raise ValueError(f"{name} is {value!r}; it must be at most {DURATION_MAX_S:g} s")
    return duration_s


def count(name: str, value: object, *, least: int = 1, is_optional: bool = False) -> None:
    """Check a number; raises ``TypeError`` and ``ValueError``."""
    if value is None and is_optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def call_with(function: Callable[..., Any] | None, *offered: Any) -> Any:
    """Call ``function``, if any, with as many of ``offered`` as it takes, from the first on."""
    if function is None:
        return None
    try:
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a built-in function that does not tell
        return function(*offered)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return function(*offered)
    return function(*offered[: sum(kind in _POSITIONAL for kind in kinds)])


def with_instance(call: partial[Any], instance: object) -> partial[Any]:
    """Give ``instance`` for each parameter annotated with its class, or with a union that has it.

    Texts are understood if their names can be resolved, or are plainly that of the class.
    """
    try:
        signature = inspect.signature(call.func)
    except (TypeError, ValueError):
        return call
    hints = {}
    with contextlib.suppress(Exception):  # annotations may say anything
        hints = typing.get_type_hints(inspect.unwrap(call.func))
    names = [
        name
        for name, parameter in signature.parameters.items()
        if _is_or_has(hints.get(name, parameter.annotation), type(instance))
    ]
    if not names:
        return call
    keywords = {name: given for name, given in call.keywords.items() if name not in names}
    bound = signature.bind_partial(*call.args, **keywords)
    bound.arguments.update(dict.fromkeys(names, instance))
    return partial(call.func, *bound.args, **bound.kwargs)


def _is_or_has(annotation: object, wanted: type) -> bool:
    if isinstance(annotation, str):
        parts = annotation.strip("'\"").replace("Optional[", "").replace("]", "").split("|")
        return any(part.strip().rpartition(".")[2] == wanted.__name__ for part in parts)
    return annotation is wanted or wanted in typing.get_args(annotation)
