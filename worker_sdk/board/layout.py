"""Pure. Where things stand on a worker's board: the page it shares with its agent.

A board is a file of ``BOARD_BYTES`` in the worker's private directory, made by the
agent and mapped by both. It is an array of 64-bit words of the host's byte order,
and texts. Each word has one writer. All instants are CLOCK_MONOTONIC of the host in
nanoseconds, which all its processes share; 0 is "never" or "none".

What it says is state, not messages: the latest word counts, whoever reads it late
misses nothing that still matters, and a writer never waits. A slot's words are
written before the word that makes it count (its deadline), and that one is cleared
before they change, so a reader who finds the same deadline twice has read a whole
slot.
"""

from __future__ import annotations

VERSION = 1

BOARD_FILE = "board"
KICK_FILE = "kick"
STACKS_FILE = "stacks"
"""Names within the worker's directory. ``kick`` is a FIFO: a byte in it asks the agent
to look at the board now. ``stacks`` is a FIFO: the fault handler writes into it."""

WORD_BYTES = 8

# Words of the header, by index. Written by the agent:
VERSION_WORD = 0
LOOK_AT = 1
"""Until when the agent looks at the board by itself. Whoever writes a deadline before
this instant needs no kick only if it is not earlier than this; see ``KICK_FILE``."""
BEAT_INTERVAL = 2
"""How often the runtime shall write ``BEAT_AT``, in nanoseconds."""

# Written by the worker:
OWNER_PID = 8
"""The process whose board this is, in its own pid namespace; 0: nobody's yet."""
STACK_SIGNAL = 9
"""The signal upon which the owner writes its stacks; 0: it does not."""
BEAT_AT = 10
"""When a thread of the runtime last ran."""
EXITING_AT = 11
"""Since when the interpreter has been ending; 0: it is not."""
IS_DEBUGGED = 12
"""1 while the main thread stands at the prompt of a Python debugger."""
PROGRESS_SINCE = 13
"""From when the limit on progress counts: the latest heartbeat, or the end of a section
after it; 0: no progress is expected (before the first heartbeat, or in a section)."""
STEP = 14
"""The step of the latest heartbeat; NO_STEP if it named none."""
HEARTBEAT_AT = 15
HEARTBEATS = 16
"""How many there were."""
STEP_TIME = 17
"""Nanoseconds between the latest two heartbeats, sections left out, per step if they
named steps; 0: not known."""
GAP_MAX = 18
"""The longest time between two heartbeats without a section in between, nanoseconds."""
SLOTS_USED = 19
"""Slots from this one on have never been used."""
SECTIONS_USED = 20
"""The same of the table of sections."""
GAPS = 21
"""How many gaps ``GAP_MAX`` is the longest of."""

NO_STEP = -1

HEADER_WORDS = 32

# Slots: one for each open timer or section.
SLOTS_MAX = 1024
"""Timers and sections of one worker that may be open at once; more are not watched."""
SLOT_WORDS = 8
SLOTS_FROM = HEADER_WORDS

# Words of a slot, by offset.
SLOT_DEADLINE = 0
"""When it expires; 0: the slot is closed or suspended; OPEN_ENDED: it is open without a
limit of its own."""
SLOT_SINCE = 1
"""When it was acquired."""
SLOT_LIMIT = 2
"""The timeout it was given in nanoseconds; 0: none; AUTO: the learned one of its name."""
SLOT_SIGNAL = 3
"""SIGNAL_DEFAULT: SIGTERM, then SIGKILL; above 0: this one; else: only report."""
SLOT_KIND = 4
SLOT_GRACE = 5
"""Of KIND_HARD_TIMEOUT: time from SIGTERM to SIGKILL in nanoseconds, if the agent's is longer."""

OPEN_ENDED = -1
AUTO = -1
SIGNAL_DEFAULT = -1_000

KIND_TIMER = 1
KIND_SECTION = 2
KIND_HARD_TIMEOUT = 3
"""A timer of in-process restart, on the progress of the main thread."""
KIND_HEARTBEAT = 4
"""A timer of in-process restart, which another thread than the main one keeps alive."""

# Names of the slots, in the same order.
NAME_BYTES = 128
"""Longer names are cut, at a whole character; 0 bytes fill up the rest."""
NAMES_FROM_BYTE = (SLOTS_FROM + SLOTS_MAX * SLOT_WORDS) * WORD_BYTES

# The table of sections: how long each took, for limits that are learned.
SECTIONS_MAX = 64
"""Sections of different names whose times are kept; times of more are not."""
SECTION_WORDS = 2
SECTION_COUNT = 0
SECTION_MAX = 1
"""The longest time, nanoseconds."""
SECTIONS_FROM = (NAMES_FROM_BYTE + SLOTS_MAX * NAME_BYTES) // WORD_BYTES
SECTION_NAMES_FROM_BYTE = (SECTIONS_FROM + SECTIONS_MAX * SECTION_WORDS) * WORD_BYTES

BOARD_BYTES = SECTION_NAMES_FROM_BYTE + SECTIONS_MAX * NAME_BYTES


def slot_word(slot: int, offset: int) -> int:
    """Return the index of a slot's word."""
    return SLOTS_FROM + slot * SLOT_WORDS + offset


def slot_name_byte(slot: int) -> int:
    """Return where a slot's name begins."""
    return NAMES_FROM_BYTE + slot * NAME_BYTES


def section_word(section: int, offset: int) -> int:
    """Return the index of a word of the table of sections."""
    return SECTIONS_FROM + section * SECTION_WORDS + offset


def section_name_byte(section: int) -> int:
    """Return where a section's name begins."""
    return SECTION_NAMES_FROM_BYTE + section * NAME_BYTES


def encode_name(name: str) -> bytes:
    """Return exactly ``NAME_BYTES`` bytes; what does not fit is cut at a whole character."""
    raw = name.encode("utf-8", "replace")[:NAME_BYTES]
    return raw.decode("utf-8", "ignore").encode().ljust(NAME_BYTES, b"\0")


def decode_name(raw: bytes) -> str:
    """Return the name in ``raw``, whatever is in there."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
