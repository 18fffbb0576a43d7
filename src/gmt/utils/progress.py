"""Progress of one piece of work: a moving bar on a terminal, at most one line per 10 % elsewhere."""

import sys
from time import monotonic
from typing import TextIO

from tqdm import tqdm

LINE_SECONDS = 5.0  # off a terminal: work that is faster than this per 10 % prints fewer lines


class Bar:
    """`update(done, note)` sets the state; `total` 0 means that the amount of work is unknown."""

    def __init__(self, name: str, total: int = 0, *, initial: int = 0, position: int = 0, unit: str = "") -> None:
        self.name, self.total, self.unit = name, total, unit
        self.stream: TextIO = sys.stderr
        self.printed, self.last = -1, -LINE_SECONDS
        self.bar = None
        if self.stream.isatty():
            name = f"{name}: " if name else ""
            amount = "{n_fmt}/{total_fmt}" + (f" {unit}" if unit else "")
            known = name + amount + " {bar:16}{postfix} [{elapsed}<{remaining}]"
            unknown = name + "{n_fmt}" + (f" {unit}" if unit else "") + "{postfix} [{elapsed}]"
            layout = known if total else unknown
            self.bar = tqdm(
                total=total or None, bar_format=layout, initial=initial, position=position, file=self.stream,
                dynamic_ncols=True, mininterval=0.3,
            )  # fmt: skip
        elif total:
            self.printed = 10 * initial // total
        else:
            print(self.name, file=self.stream, flush=True)

    def update(self, done: int, note: str = "") -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(max(0, done - self.bar.n))
        elif self.total and self._line_is_due(done):
            share = f"{100 * done // self.total:>3} %"
            amount = f"{done:,}/{self.total:,}" + (f" {self.unit}" if self.unit else "")
            line = ", ".join(part for part in (f"{share} ({amount})", note) if part)
            print(f"{self.name}: {line}" if self.name else line, file=self.stream, flush=True)

    def _line_is_due(self, done: int) -> bool:
        """Whether another tenth is done; the last line is always printed, others not more often than LINE_SECONDS."""
        tenth = 10 * done // self.total
        if tenth <= self.printed or (done < self.total and (tenth == 0 or monotonic() - self.last < LINE_SECONDS)):
            return False
        self.printed, self.last = tenth, monotonic()
        return True

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
