"""Signals set a flag and nothing else: what they interrupt is the loop's to say."""

import signal
from types import FrameType
from typing import Any

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Interruption:
    """Context in which these are only noted; what was ignored, as `nohup` does, stays so. A second SIGINT is the usual
    one again."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        heeded = [number for number in HEEDED if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    def __bool__(self) -> bool:
        return self.received is not None
