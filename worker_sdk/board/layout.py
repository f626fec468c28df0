"""Pure. Where things stand on a worker's board: the page it shares with its agent.

A board is a file of ``BOARD_BYTES`` in the worker's private directory, made by the
agent and mapped by both. It is an array of 64-bit words of the host's byte order,
and texts. Each word has one writer. All instants are CLOCK_MONOTONIC of the host in
nanoseconds, which all its processes share; 0 is "never" or "none".

What it says is state, not messages: the latest word counts, a late reader misses nothing
that still matters, and a writer never waits. A slot's words are written before the word
that makes it count (its deadline), and that one is cleared before they change, so a reader
that finds the same deadline twice has read a whole slot.
"""

from __future__ import annotations

VERSION = 1

# Names within the worker's directory. The FIFOs are opened for reading and writing by both.
BOARD_FILE = "board"
KICK_FILE = "kick"  # a byte in it asks the agent to look at the board now
ASK_FILE = "ask"  # a byte in it asks the worker for its stacks
STACKS_FILE = "stacks"  # where it writes them, as does the fault handler upon a signal
SUSPECTS_FILE = "suspects"  # lines in it accuse hosts
STACKS_END = b"\0"  # what it writes behind them

WORD_BYTES = 8

# Words of the header, by index. Written by the agent:
VERSION_WORD = 0
LOOK_AT = 1  # when the agent looks by itself: a deadline before it needs a kick
BEAT_INTERVAL = 2  # how often the runtime shall write BEAT_AT, ns

# Written by the worker:
OWNER_PID = 8  # the process whose board this is, in its own pid namespace; 0: none yet
STACK_SIGNAL = 9  # upon which the owner writes its stacks; 0: it does not
BEAT_AT = 10  # when a thread of the runtime last ran
EXITING_AT = 11  # since when the interpreter has been ending
IS_DEBUGGED = 12  # 1 while the main thread stands at the prompt of a Python debugger
# From when the limit on progress counts: the latest heartbeat, or the end of a section after
# it; 0: no progress is expected (before the first heartbeat, or in a section).
PROGRESS_SINCE = 13
STEP = 14  # of the latest heartbeat; NO_STEP if it named none
HEARTBEAT_AT = 15
HEARTBEATS = 16  # how many there were
# Between the latest two heartbeats, sections left out, per step if they named steps; ns.
STEP_TIME = 17
GAP_MAX = 18  # the longest time between two heartbeats without a section in between, ns
SLOTS_USED = 19  # slots from this one on have never been used
SECTIONS_USED = 20  # the same of the table of sections
GAPS = 21  # how many gaps GAP_MAX is the longest of
ANSWERS = 23  # 1 if a thread of the runtime answers what is asked at ASK_FILE
# All words up to `HEADER_WORDS` are 0 until one side knows them: a version that adds one changes
# nothing for the other side.
STEPS_TOTAL = 24  # how many steps training will make; 0: not told
STEPS_TIMED = 25  # how many steps there were between heartbeats
STEPS_TIME = 26  # what these took together, sections left out, ns
STEPS_BUSY = 27  # of how many of these the worker's own work is known
BUSY_TIME = 28  # what that took together, ns
SAVED_STEP = 29  # of the latest checkpoint; it counts once SAVED_AT is not 0
SAVED_AT = 30
LOSS = 31  # of the latest heartbeat that told it, a double's bits; 0: none did

NO_STEP = -1

HEADER_WORDS = 32

# Slots: one for each timer or section that is open; more are not watched.
SLOTS_MAX, SLOT_WORDS, SLOTS_FROM = 1024, 8, HEADER_WORDS

# Words of a slot, by offset.
SLOT_DEADLINE = 0  # 0: closed or suspended; OPEN_ENDED: open without a limit of its own
SLOT_SINCE = 1  # when it was acquired
SLOT_LIMIT = 2  # the timeout it was given, ns; 0: none; AUTO: the learned one of its name
SLOT_SIGNAL = 3  # SIGNAL_DEFAULT: SIGTERM, then SIGKILL; above 0: this one; else: only report
SLOT_KIND = 4
SLOT_GRACE = 5  # of KIND_HARD_TIMEOUT: from SIGTERM to SIGKILL, ns, if the agent's is longer

OPEN_ENDED = -1
AUTO = -1
SIGNAL_DEFAULT = -1_000

KIND_TIMER = 1
KIND_SECTION = 2
KIND_HARD_TIMEOUT = 3  # of in-process restart, on the progress of the main thread
KIND_HEARTBEAT = 4  # of in-process restart, kept alive by another thread than the main one

# Names of the slots, in the same order. Longer ones are cut; 0 bytes fill up the rest.
NAME_BYTES = 128
NAMES_FROM_BYTE = (SLOTS_FROM + SLOTS_MAX * SLOT_WORDS) * WORD_BYTES

# The table of sections: how long those of a name took, for limits that are learned. Times of
# more names are not kept.
SECTIONS_MAX, SECTION_WORDS = 64, 2
SECTION_COUNT, SECTION_MAX = 0, 1  # how many there were, and the longest, ns
SECTIONS_FROM = (NAMES_FROM_BYTE + SLOTS_MAX * NAME_BYTES) // WORD_BYTES
SECTION_NAMES_FROM_BYTE = (SECTIONS_FROM + SECTIONS_MAX * SECTION_WORDS) * WORD_BYTES

BOARD_BYTES = SECTION_NAMES_FROM_BYTE + SECTIONS_MAX * NAME_BYTES


def slot_word(slot: int, offset: int) -> int:
    """Return the index of a slot's word."""
    return SLOTS_FROM + slot * SLOT_WORDS + offset


def section_word(section: int, offset: int) -> int:
    """Return the index of a word of the table of sections."""
    return SECTIONS_FROM + section * SECTION_WORDS + offset


def name_bytes(names_from_byte: int, number: int) -> slice:
    """Return where a name stands, of those that begin at ``names_from_byte``."""
    return slice(names_from_byte + number * NAME_BYTES, names_from_byte + (number + 1) * NAME_BYTES)


def encode_text(text: str, size: int = NAME_BYTES) -> bytes:
    """Return exactly so many bytes; what does not fit is cut at a whole character."""
    raw = text.encode("utf-8", "replace")[:size]
    return raw.decode("utf-8", "ignore").encode().ljust(size, b"\0")


def decode_text(raw: bytes) -> str:
    """Return the text in ``raw``, whatever is in there."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
