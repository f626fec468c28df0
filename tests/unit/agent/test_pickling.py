"""Functions that travel to workers."""

import pickle
from collections.abc import Callable
from types import CodeType
from typing import cast

from drumbeat.agent.launching import pickling


def function_of_a_script() -> Callable[[], CodeType]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = "def outer():\n    return (lambda: None).__code__\n"
    exec(compile(text, "/home/user/script.py", "exec"), namespace)
    return cast("Callable[[], CodeType]", namespace["outer"])


def test_code_keeps_the_name_of_its_file_for_tracebacks() -> None:
    copy = pickle.loads(pickling.dumps(function_of_a_script()))
    assert copy.__code__.co_filename == "/home/user/script.py"
    assert copy().co_filename == "/home/user/script.py"
