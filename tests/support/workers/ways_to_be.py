"""A worker in the state of its rank, in which it stays; it says so if a call returns early.

Every look at it has to leave all of that as it was. Its timers only report: one expires each time
that the argument says, in seconds, so that the watchdog looks as well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import worker_sdk

LONG_S = 600
LOOKS = 3  # of the watchdog
WITHOUT_LOCK, WITH_LOCK = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)


class Time(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def run_python() -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        time.sleep(0.001)


def sleep_in_python() -> None:
    time.sleep(LONG_S)


def wait_for_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=LONG_S)


def sleep_in_c() -> int:
    return int(WITHOUT_LOCK.nanosleep(ctypes.byref(Time(LONG_S, 0)), None))


def sleep_with_lock() -> int:
    return int(WITH_LOCK.nanosleep(ctypes.byref(Time(LONG_S, 0)), None))


def poll_with_lock() -> int:
    return int(WITH_LOCK.poll(None, 0, LONG_S * 1000))


def wait_for_semaphore_with_lock() -> int:
    semaphore = ctypes.create_string_buffer(64)
    WITHOUT_LOCK.sem_init(semaphore, 0, 0)
    until = Time(int(time.time()) + LONG_S, 0)
    return int(WITH_LOCK.sem_timedwait(semaphore, ctypes.byref(until)))


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def be_traced() -> None:
    time.sleep(LONG_S)  # the test attaches


def end_first_thread() -> None:
    WITHOUT_LOCK.syscall(60, 0)  # exit, of this thread alone


WAYS = (
    run_python,
    sleep_in_python,
    wait_for_lock,
    sleep_in_c,
    sleep_with_lock,
    poll_with_lock,
    wait_for_semaphore_with_lock,
    stop,
    be_traced,
    end_first_thread,
)


def main(every_s: float) -> None:
    way = WAYS[int(os.environ["RANK"])]
    worker_sdk.heartbeat(step=1)
    for look in range(1, LOOKS + 1):
        worker_sdk.acquire(f"look {look}", after=look * every_s, signal=0)
    print(f"began {way.__name__}", flush=True)
    result = way()
    print(f"returned from {way.__name__}: {result}, errno {ctypes.get_errno()}", flush=True)
    time.sleep(LONG_S)


if __name__ == "__main__":
    main(float(sys.argv[1]))
