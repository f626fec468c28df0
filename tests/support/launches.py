"""Programs that call ``drumbeat.launch``, each a script of its own."""

from textwrap import dedent

from tests.support.cluster import Cluster, Process

HEAD = """
import gc, json, os, sys, threading, time
import drumbeat
from drumbeat.agent.errors import AgentError, ChildFailedError

def config(workers=2, **more):
    return drumbeat.LaunchConfig(1, 1, workers, **{"max_restarts": 0, **more})

def say(line):
    os.write(1, f"{line}\\n".encode())  # at once: unbuffered prints of two workers mix

def failure_of(job, *args):
    try:
        job(*args)
    except ChildFailedError as error:
        return error
    raise AssertionError("it has not failed")
"""


def run(cluster: Cluster, text: str, *arguments: str, timeout_s: float | None = None) -> Process:
    """Return the program that has run to a good end, with nothing left of it."""
    process = cluster.script(HEAD + dedent(text), *arguments)
    code = process.wait(timeout_s) if timeout_s else process.wait()
    assert code == 0, process.log()
    check_nothing_left(cluster)
    return process


def check_nothing_left(cluster: Cluster) -> None:
    cluster.wait_until_alone()
    # Of an agent that was killed there may be something, until the next one starts.
    assert not list(cluster.directory.glob("drumbeat-*/agent"))
