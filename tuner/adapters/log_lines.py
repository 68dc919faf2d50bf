"""A log as lines: colours, carriage returns and the prefixes of launchers taken care of."""

import datetime
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# CSI sequences (colours, cursor) and OSC sequences (titles, links)
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# torchrun --tee (old and new), mpirun --tag-output, srun -l, Ray, deepspeed's launcher
_PREFIXES = re.compile(
    r"^\s*(?:\[(?:rank|default)(?P<torchrun>\d+)\]:\s?"
    r"|\[\d+,(?P<mpirun>\d+)\]<std(?:out|err)>:\s?"
    r"|(?P<srun>\d{1,5}): "
    r"|\([\w.]+ (?:rank=(?P<ray>\d+), )?pid=\d+[^)]*\) "
    r"|(?:worker-|node)\d+: )"
)
_STAMP = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[ T]"
    r"(?P<clock>\d\d:\d\d:\d\d)[.,](?P<frac>\d{3,6})"
)
_LINE_END = re.compile(r"[\r\n]+")
# Lines that came within so many seconds of each other are taken to have come at one time.
_CLOSE_S = 0.05
_MAX_READ_BYTES = 1 << 22
_MAX_LINE_CHARS = 1 << 16


@dataclass(frozen=True)
class LogLine:
    """One line of a log.

    Attributes:
        text: The line without colours and without the launcher's prefix.
        rank: Who wrote it, as the prefix or the file says; none where that is not known.
        arrival_s: When it was seen to arrive, Unix seconds; none where that is not known.
        stamp_s: The line's own time to the millisecond or better, seconds; none without one.
    """

    text: str
    rank: int | None = None
    arrival_s: float | None = None
    stamp_s: float | None = None


def clean(text: str, rank: int | None = None, arrival_s: float | None = None) -> LogLine:
    """Take colours and prefixes off one line."""
    text = _ESCAPES.sub("", text)[:_MAX_LINE_CHARS]
    while match := _PREFIXES.match(text):
        found = next((group for group in match.groups() if group is not None), None)
        rank = int(found) if found is not None else rank
        text = text[match.end() :]
    return LogLine(text.rstrip(), rank, arrival_s, _stamp_s(text))


def _stamp_s(text: str) -> float | None:
    match = _STAMP.search(text)
    if match is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(
            f"{match['year']}-{match['month']}-{match['day']}T{match['clock']}+00:00"
        )
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{match['frac']}")


def split(text: str) -> list[str]:
    """Lines of a text; a progress bar's carriage returns end lines too, empty ones are left out."""
    return [line for line in _LINE_END.split(text) if line.strip()]


class LogTail:
    """Reads what is new in a growing file.

    Args:
        path: The log, which need not exist yet.
        rank: The rank whose log it is; none for a log of several.
    """

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self._path, self._rank = path, rank
        self._offset = 0
        self._rest = b""
        self._bar = b""
        self._looked_s = 0.0

    def read(self, *, is_final: bool = False) -> Iterator[LogLine]:
        """New whole lines; at the end of the program (`is_final`) also what has no line end.

        The last of the new lines arrived when the file changed last. The others arrived since the
        last look; where that was long ago, their time is not known.
        """
        looked_s, self._looked_s = self._looked_s, time.time()
        while block := self._block():
            data, changed_s = block
            *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
            is_bar = _is_whole_bar(self._rest) and self._rest != self._bar
            if is_bar:
                self._bar = self._rest
                lines.append(self._rest)
            is_close = changed_s - looked_s <= _CLOSE_S
            yield from self._lines(lines, changed_s, changed_s if is_close else None)
            if len(data) < _MAX_READ_BYTES:
                break
        if is_final and self._rest:
            rest, self._rest = self._rest, b""
            yield from self._lines([rest], None, None)

    def _block(self) -> tuple[bytes, float] | None:
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_size <= self._offset:
                    return None
                stream.seek(self._offset)
                data = stream.read(_MAX_READ_BYTES)
        except OSError:
            return None
        self._offset += len(data)
        return data, status.st_mtime_ns / 1e9

    def _lines(
        self, lines: list[bytes], last_s: float | None, others_s: float | None
    ) -> Iterator[LogLine]:
        texts = [text for raw in lines if (text := raw.decode(errors="replace")).strip()]
        for index, text in enumerate(texts):
            is_last = index == len(texts) - 1
            yield clean(text, self._rank, last_s if is_last else others_s)


def _is_whole_bar(rest: bytes) -> bool:
    """A progress bar: written whole, but ended only by the carriage return of the next one."""
    return b"%|" in rest and rest.rstrip().endswith(b"]")
