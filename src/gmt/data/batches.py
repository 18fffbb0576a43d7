"""A prepared stream as batches: which tokens step s reads is a pure function of (seed, step).

Windows of T tokens do not overlap; their order within an epoch is a permutation that is computed entry by entry,
never held. Ranks split each micro-batch between them and see together what one process sees.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gmt.data.manifest import Manifest
from gmt.errors import DataError
from gmt.utils.seeding import key_bytes


class Permutation:
    """A shuffle of range(n) from a key, by a four-round Feistel network on the next even number of bits.

    Values that fall outside the range are sent through again (cycle walking), so that it is one to one on it;
    fewer than four passes are needed on average.
    """

    def __init__(self, n: int, *key: int) -> None:
        self.n = n
        self.half = np.uint64(max(1, -(-max(n - 1, 1).bit_length() // 2)))
        self.mask = np.uint64((1 << int(self.half)) - 1)
        self.keys = np.frombuffer(key_bytes(*key), dtype="<u8")

    def __call__(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        value = self._rounds(index.astype(np.uint64))
        while (outside := value >= self.n).any():
            value[outside] = self._rounds(value[outside])
        return value.astype(np.int64)

    def _rounds(self, value: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = value >> self.half, value & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & self.mask)
        return (left << self.half) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit finaliser: every input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Stream:
    """One split of a prepared folder, memory-mapped."""

    def __init__(self, folder: str | Path, split: str) -> None:
        self.manifest = Manifest.load(folder)
        path = Path(folder) / f"{split}.bin"
        tokens = self.manifest.tokens[split]
        wanted = tokens * np.dtype(self.manifest.dtype).itemsize
        if not path.exists() or path.stat().st_size != wanted:
            raise DataError(
                f"{path} is not the {wanted:,} bytes its manifest says; `gmt data verify {folder}` tells more"
            )
        self.tokens = np.memmap(path, dtype=self.manifest.dtype, mode="r", shape=(tokens,))

    def windows(self, context: int) -> int:
        """floor((N-1) / T): each window needs the token after it."""
        return max(len(self.tokens) - 1, 0) // context


class Batch(NamedTuple):
    ids: NDArray[np.int64]  # [rows, T]
    labels: NDArray[np.int64]  # [rows, T], the next token at each position
    windows: NDArray[np.int64]  # [rows], which window of the stream each row is


def read_windows(stream: Stream, windows: NDArray[np.int64], context: int) -> Batch:
    rows = np.empty((len(windows), context + 1), dtype=np.int64)
    for row, window in zip(rows, windows.tolist(), strict=True):
        row[:] = stream.tokens[window * context : window * context + context + 1]
    return Batch(rows[:, :-1], rows[:, 1:], windows)


class TrainBatches:
    """The training stream: `micro_batch` windows at a time over all ranks, `accumulation` micro-batches a step."""

    def __init__(
        self,
        stream: Stream,
        context: int,
        micro_batch: int,
        accumulation: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if micro_batch % world:
            raise DataError(f"a micro-batch of {micro_batch} windows does not divide among {world} ranks")
        self.stream, self.context, self.seed = stream, context, seed
        self.micro_batch, self.accumulation = micro_batch, accumulation
        self.rows = slice(rank * micro_batch // world, (rank + 1) * micro_batch // world)
        self.windows = stream.windows(context)
        # windows beyond an epoch's last full step are not read
        self.steps_per_epoch = self.windows // (micro_batch * accumulation)
        if self.steps_per_epoch == 0:
            wanted = micro_batch * accumulation
            raise DataError(
                f"one step reads {wanted} windows of {context} tokens; the training stream has {self.windows}"
            )

    def at(self, step: int, micro: int) -> Batch:
        """The rank's part of micro-batch `micro` of optimizer step `step`, both from 0."""
        return read_windows(self.stream, self.whole(step, micro)[self.rows], self.context)

    def whole(self, step: int, micro: int) -> NDArray[np.int64]:
        """The windows of all ranks."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        first = (step_in_epoch * self.accumulation + micro) * self.micro_batch
        return Permutation(self.windows, self.seed, epoch)(np.arange(first, first + self.micro_batch))


class ValidationBatches:
    """The validation stream in order: at most `limit` batches, the last one as long as it happens to be."""

    def __init__(
        self, stream: Stream, context: int, batch: int, limit: int = 512, rank: int = 0, world: int = 1
    ) -> None:
        self.stream, self.context, self.batch = stream, context, batch
        self.windows = stream.windows(context)
        if self.windows == 0:
            missing = context + 1 - len(stream.tokens)
            raise DataError(f"the validation stream is {missing} tokens short of one window of {context}")
        self.rank, self.world = rank, world
        self.count = min(limit, -(-self.windows // batch))

    def __len__(self) -> int:
        return self.count

    def at(self, index: int) -> Batch:
        """The rank's rows of batch `index`: every `world`-th window, so that short batches divide too."""
        first = index * self.batch
        windows = np.arange(first, min(first + self.batch, self.windows))[self.rank :: self.world]
        return read_windows(self.stream, windows, self.context)
