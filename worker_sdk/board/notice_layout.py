"""Pure. Where things stand on a worker's notice page: what the agent asks of its training.

A file of ``PAGE_BYTES`` beside the board, made by the agent and mapped by the worker. A worker
of an agent that makes none gets no notice, and a worker that does not know the file loses
nothing. Words and instants are as on the board (``layout``), and each has one writer.

A notice counts by its id, which is cleared before its kind and reason change and written after
them. Its time comes earlier under the same id. ``PROPOSED`` and ``CHOSEN`` count without an id: a
step that was chosen stays so when its notice is over, for a worker that comes to it later.
"""

from __future__ import annotations

from enum import IntEnum

VERSION = 2
NOTICE_FILE = "notice"

# Words, by index. Written by the agent:
VERSION_WORD = 0
NOTICE_ID = 1  # 0: no notice is pending
KIND = 2  # a ``Kind``
UNTIL = 3  # when what the notice is about goes on, with a checkpoint or without; ns
CHOSEN = 4  # the step at which all ranks save; NO_STEP: none was chosen. It only rises
PROPOSED = 5  # the step that all ranks stop at until it is chosen; CHOSEN: none is proposed
CHOSEN_ID = 6  # the notice for which CHOSEN was chosen

# Written by the worker:
ASKED = 8  # the latest step that training asked about; NO_STEP: it has never asked
ANSWERED = 9  # the latest step that was answered; NO_STEP: none since training began (again)
READY = 10  # the step that the worker stops at now; it has not answered ASKED before that
DUE = 11  # the latest step that was answered with yes; NO_STEP: none
SAVED_ID = 12  # the notice under which training said last that it had saved, and at which step
SAVED = 13

NO_STEP = -1

HEADER_WORDS = 16

# Why, in words; cut at a whole character, 0 bytes fill up the rest.
REASON_FROM_BYTE, REASON_BYTES = HEADER_WORDS * 8, 512
PAGE_BYTES = REASON_FROM_BYTE + REASON_BYTES


class Kind(IntEnum):
    """What a notice is about."""

    OTHER = 0  # of a later version
    PREEMPTION = 1  # a host will go away
    DRAIN = 2  # hosts are taken out of the run
    STOP = 3  # the run will be stopped
    RESTART = 4  # a new round is planned
    SCALE_UP = 5  # more hosts will take part
    CHECKPOINT = 6  # nothing but that an operator wants one
