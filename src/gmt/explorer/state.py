"""What the server keeps: the models, the one thread that runs them, and what was read lately.

Edits change a model while they last, so that no two runs may overlap: every run is a job of one worker. What has been
read already is answered without it.
"""

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from gmt.analysis.interventions import Edit, intervene
from gmt.analysis.interventions.edit import At
from gmt.analysis.meaning import Meaning, arrival, meanings, typical_scale
from gmt.analysis.pos import word_classes
from gmt.analysis.trace import Array, Trace, trace, word
from gmt.errors import GMTError
from gmt.evaluate.generation import Sampling, generate
from gmt.explorer.answers import Reading
from gmt.explorer.asks import Ask
from gmt.explorer.corpus import Corpus
from gmt.hf.load import Loaded

WAITING = 16  # jobs, besides the one that is being done
LIMIT_S = 60.0
CLOSING_S = 5.0
TOO_LONG = "the model took too long over this: try a shorter text"
KEEP_BYTES = 512 << 20
MOST_TOKENS = 20_000  # a text of other letters than ours can have several tokens a character
NEXT = 20
# a trace's memory is its model's, and one copy of it does for all
MEMORY = ("centroids", "states", "transition", "usage", "age", "gate", "momentum")


class BusyError(GMTError):
    """Too many wait already."""


class TooLongError(GMTError):
    """Nobody waits for the answer any more."""


Job = Callable[[float], Any]  # told when it must be done, on time.monotonic's clock


class Worker:
    """One thread that does one job after another; with nothing to do, some of the idle work."""

    def __init__(
        self, idle: Callable[[], bool] = lambda: False, waiting: int = WAITING, limit_s: float = LIMIT_S
    ) -> None:
        self.limit_s = limit_s
        self._jobs: queue.Queue[tuple[Future[Any], Job, float] | None] = queue.Queue(waiting)
        self._closed = False
        self._idle, self._left = idle, False  # idle work begins after the first job: the first view comes first
        self._thread = threading.Thread(target=self._work, name="gmt-explore", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self._jobs.put_nowait((future, job, time.monotonic() + self.limit_s))
        except queue.Full:
            raise BusyError("too many requests wait for the model already: try again in a moment") from None
        return future

    def close(self) -> None:
        """After the job that is being done; those that wait are left undone."""
        self._closed = True
        with suppress(queue.Full):  # then it is not asleep, and sees the flag
            self._jobs.put_nowait(None)
        self._thread.join(timeout=CLOSING_S)

    def _work(self) -> None:
        while not self._closed:
            try:
                item = self._jobs.get(block=not self._left)
            except queue.Empty:
                self._left = self._idle_once()
                continue
            if item is not None:
                self._do(*item)
                self._left = True

    def _idle_once(self) -> bool:
        try:
            return self._idle()
        except Exception:  # examples are an extra: a request must not find the worker dead for their sake
            return False

    def _do(self, future: Future[Any], job: Job, deadline: float) -> None:
        if not future.set_running_or_notify_cancel():
            return  # whoever asked has gone
        try:
            future.set_result(job(deadline))
        except BaseException as error:
            future.set_exception(error)


class Kept:
    """Readings by what was asked, the least recently used thrown away; safe from any thread."""

    def __init__(self, most: int = KEEP_BYTES) -> None:
        self.most, self._size = most, 0
        self._found: OrderedDict[Ask, tuple[Reading, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ask: Ask) -> Reading | None:
        with self._lock:
            if ask not in self._found:
                return None
            self._found.move_to_end(ask)
            return self._found[ask][0]

    def put(self, ask: Ask, reading: Reading) -> None:
        shared = set(MEMORY) - {"transition"}  # which edits may have made its own
        size = sum(value.nbytes for name, value in reading.trace.arrays.items() if name not in shared)
        with self._lock:
            self._size += size - self._found.pop(ask, (reading, 0))[1]
            self._found[ask] = reading, size
            while self._size > self.most and len(self._found) > 1:
                self._size -= self._found.popitem(last=False)[1][1]


class Explorer:
    def __init__(self, models: list[Loaded], corpus: Corpus | None = None, limit_s: float = LIMIT_S) -> None:
        self.models, self.corpus, self.limit_s = models, corpus, limit_s
        self.kept = Kept()
        self._memory: dict[int, dict[str, Array]] = {}
        self.worker = Worker(corpus.read_one if corpus else lambda: False, limit_s=limit_s)

    def close(self) -> None:
        self.worker.close()

    def reading(self, ask: Ask) -> Future[Reading]:
        """Done already where it was read before."""
        if (found := self.kept.get(ask)) is None:
            return self.worker.submit(lambda deadline: self._reading(ask, deadline))
        future: Future[Reading] = Future()
        future.set_result(found)
        return future

    def continuation(self, ask: Ask, sampling: Sampling) -> Future[str]:
        return self.worker.submit(lambda deadline: self._continuation(ask, sampling, deadline))

    def meaning(self, ask: Ask, reading: Reading, block: int, slot: int) -> Meaning:
        """Of a token's arrival in a slot. It reads weights, which no edit touches, and so needs no worker."""
        loaded = self.models[ask.model]
        vectors = arrival(loaded.lm, block, slot)[None]
        return meanings(loaded.lm, vectors, typical_scale([reading.trace]), loaded.words)[0]

    def examples(self, ask: Ask, block: int, slot: int) -> tuple[list[dict[str, str]], int]:
        """What was found in the corpus so far, and how many windows of it are still to be read."""
        if self.corpus is None:
            return [], 0
        found = self.corpus.examples[ask.model]
        return found.of(block, slot), len(found.windows) - found.done

    def _reading(self, ask: Ask, deadline: float) -> Reading:
        if (found := self.kept.get(ask)) is not None:  # read while this one waited
            return found
        found = self._shared(ask, read(self.models[ask.model], ask, deadline))
        self.kept.put(ask, found)
        return found

    def _shared(self, ask: Ask, reading: Reading) -> Reading:
        """With the one copy of the model's memory, and P as the edits leave it."""
        arrays = dict(reading.trace.arrays)
        if reading.trace.has_memory:
            arrays |= self._memory.setdefault(ask.model, {name: arrays[name] for name in MEMORY})
            arrays["transition"] = edited(arrays["transition"], ask.edits)
        return replace(reading, trace=Trace(reading.trace.facts, arrays))

    def _continuation(self, ask: Ask, sampling: Sampling, deadline: float) -> str:
        loaded = self.models[ask.model]
        with _edits(loaded, ask.edits), _next_tokens(loaded, deadline):  # no token is begun after the deadline
            try:
                return generate(loaded, ask.text, sampling)[0]
            except RuntimeError:  # torch's, when it is to choose among probabilities that are none
                raise GMTError("with these edits the model's numbers overflow, and nothing can be chosen") from None


def read(loaded: Loaded, ask: Ask, deadline: float = float("inf")) -> Reading:
    """A text through a model under edits. Whole displacements are not kept: no answer needs them."""
    count = len(loaded.words.encode(ask.text, add_special_tokens=False).ids)
    if count > MOST_TOKENS:
        raise GMTError(f"the text has {count:,} tokens; at most {MOST_TOKENS:,} are read at once")
    with _next_tokens(loaded, deadline) as tops, _edits(loaded, ask.edits) as fired:
        found = trace(loaded, ask.text)
    shares, ids = (torch.cat(parts) for parts in zip(*tops, strict=True))
    small = Trace(found.facts, {name: value for name, value in found.arrays.items() if name != "displacement"})
    classes = word_classes(ask.text, found.facts["spans"])
    return Reading(small, classes, _words(loaded, ids), shares.numpy(), fired.counts if fired else [])


def _edits(loaded: Loaded, edits: Sequence[Edit]) -> Any:
    return intervene(loaded.lm, edits) if edits else nullcontext()


@contextmanager
def _next_tokens(loaded: Loaded, deadline: float) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The likeliest next tokens of every window, with their probabilities; no window begins after the deadline."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def before(module: Any, args: Any) -> None:
        if time.monotonic() > deadline:
            raise TooLongError(TOO_LONG)

    def after(module: Any, args: Any, out: Any) -> None:
        logits = out.logits[0].float()
        top = logits.softmax(-1).topk(min(NEXT, logits.shape[-1]))
        found.append((top.values.cpu(), top.indices.cpu()))

    handles = [loaded.lm.register_forward_pre_hook(before), loaded.lm.register_forward_hook(after)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _words(loaded: Loaded, ids: torch.Tensor) -> list[list[str]]:
    names = {index: word(loaded.words, index) for index in ids.unique().tolist()}
    return [[names[index] for index in row] for row in ids.tolist()]


def edited(transition: Array, edits: Sequence[Edit]) -> Array:
    """[L, F, F] P as edits of its edges leave it; the very same array where none does."""
    mine = [e for e in edits if e.place == "transition" and not e.does_nothing() and (e.rows is None or 0 in e.rows)]
    if not mine:
        return transition
    found, nothing = transition.copy(), torch.empty(0)
    for edit in mine:
        for block in range(len(found)) if edit.block is None else [edit.block]:
            at = At(block, nothing, nothing, None, None)
            found[block] = edit.apply(torch.from_numpy(found[block].copy()), at).numpy()
    return found
