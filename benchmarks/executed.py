"""Sums the counts that callgrind writes for each instruction."""

import functools
import struct
from collections import Counter
from pathlib import Path

LOCK = b"\xf0"  # the prefix of x86's atomic operations


class Executed:
    """Reads dumps of ``--dump-instr=yes --compress-pos=no --compress-strings=no``."""

    def read(self, dump: Path) -> tuple[str, Counter[str]]:
        """The dump's name, and its counts; "atomic" is one of them."""
        name, events, counts = "", [], Counter[str]()
        binary, inclusive = "", False
        for line in dump.read_text(errors="replace").splitlines():
            if line.startswith("0x") and not inclusive:
                address, _, *numbers = line.split()
                given = dict(zip(events, map(int, numbers), strict=False))
                counts.update(given)
                if _is_atomic(binary, int(address, 16)):
                    counts["atomic"] += given["Ir"]
            inclusive = line.startswith("calls=")  # the next line has the callee's counts
            key, _, value = line.partition("=")
            if key == "ob":
                binary = value
            elif line.startswith("events: "):
                events = line.split()[1:]
            elif line.startswith("desc: Trigger: Client Request: "):
                name = line.partition("Request: ")[2]
        return name, counts


@functools.cache
def _is_atomic(binary: str, address: int) -> bool:
    for start, offset, size in _segments(binary):
        if start <= address < start + size:
            with open(binary, "rb") as file:
                file.seek(offset + address - start)
                return file.read(1) == LOCK
    return False


@functools.cache
def _segments(binary: str) -> list[tuple[int, int, int]]:
    """The file's loaded segments: address, offset in the file, size."""
    if not Path(binary).is_file():
        return []
    with open(binary, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF":
            return []
        table, size, number = struct.unpack_from("<32xQ14xHH", head)
        file.seek(table)
        parts = [struct.unpack("<IIQQQQQQ", file.read(size)[:56]) for _ in range(number)]
    return [(part[3], part[2], part[5]) for part in parts if part[0] == 1]
