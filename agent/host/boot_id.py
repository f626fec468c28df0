"""Shell. What tells this machine, since its kernel has started, from all others."""

from pathlib import Path

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """Return the boot id of the kernel; nothing if it has none."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
