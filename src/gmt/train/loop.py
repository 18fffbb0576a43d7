"""`gmt train`, top to bottom: data, model, resume, steps, validation, saving, exit code."""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from gmt.checkpoint.format import Progress, read_progress
from gmt.checkpoint.state import load_state
from gmt.checkpoint.writer import CheckpointWriter
from gmt.config import GMTConfig
from gmt.config.compare import differences
from gmt.data.batches import Stream, TrainBatches, ValidationBatches
from gmt.errors import GMTError
from gmt.evaluate.validation import validate
from gmt.memory.diagnostics import memory_diagnostics
from gmt.model.device import autocast, pick_device
from gmt.train.checks import setting_warnings
from gmt.train.curves import draw_curves
from gmt.train.lock import Lock
from gmt.train.metrics import Loggers
from gmt.train.optimizer import make_optimizer
from gmt.train.parallel import Parallel
from gmt.train.record import not_finite, step_values, sublayer_shares
from gmt.train.resume import agree_on_start
from gmt.train.saving import checkpoint_files
from gmt.train.schedule import Schedule
from gmt.train.signals import Interruption
from gmt.train.start import build, centroids_from_data
from gmt.train.step import Stepper, StepRecord
from gmt.train.trust import check_kernels, check_routing
from gmt.utils.io import write_json

PREEMPTED = 75
DIVERGED = "diverged.json"  # the step and the reason, after a number that is not finite
PACE_STEPS = 20  # over which tokens per second are measured

# events: step, validating, validation, saved, fresh, resumed, damaged, warning, interrupted
Listener = Callable[[str, dict[str, Any]], None]


class Options(NamedTuple):
    data: Path
    out: Path
    resume: bool = False
    force: bool = False


def train(cfg: GMTConfig, options: Options, tell: Listener = lambda *_: None) -> int:
    """Train to the end or to an interruption; return the exit code."""
    run = Run(cfg, options, tell)
    try:
        return run.go()
    finally:
        run.parallel.close()


class Run:
    """One process's part of a run."""

    def __init__(self, cfg: GMTConfig, options: Options, tell: Listener = lambda *_: None) -> None:
        self.cfg, self.options = cfg, options
        self.parallel = Parallel(pick_device(cfg.train.device), cfg.train.parallel)
        self.tell = tell if self.parallel.main else lambda *_: None
        self.done, self.best, self.pending = 0, None, False  # steps; step and loss; a validation that is due
        self.saved: tuple[int, bool] | None = None
        self.unread: StepRecord | None = None
        self.first_step = True  # of this process
        self.clock: deque[tuple[float, int]] = deque(maxlen=PACE_STEPS)
        self.lock, self.loggers = Lock(options.out), Loggers(options.out, self.warn)
        self.writer = CheckpointWriter(options.out, cfg.save.keep, self.warn)
        try:
            self._build()
        except BaseException:
            self.parallel.close()
            raise

    def _build(self) -> None:
        """Data, model, optimizer."""
        cfg, train = self.cfg, self.cfg.train
        self._together(self._open_data)
        if len(set(self.parallel.gather((self.data_hash, str(cfg.to_dict()))))) > 1:
            raise GMTError("the ranks were started with different data or settings")
        self.schedule = Schedule(cfg, self.batches.steps_per_epoch)
        for message in setting_warnings(cfg, self.schedule, self.parallel.device, self.parallel.world):
            self.warn(message)
        self.lm = build(cfg, self.parallel.device)
        check_kernels(self.lm, self.parallel.device, train.micro_batch // self.parallel.world * cfg.model.context)
        if cfg.memory.init == "k-means" and self.lm.cells:
            with autocast(self.parallel.device, train.precision):
                centroids_from_data(self.lm, self.batches)
        self.model = self.parallel.wrap(self.lm, train.compile)
        self.optimizer = make_optimizer(self.lm, cfg)
        self.stepper = Stepper(self.lm, self.model, self.optimizer, self.batches, self.schedule, self.parallel)

    def _open_data(self) -> None:
        cfg, train, place = self.cfg, self.cfg.train, (self.parallel.rank, self.parallel.world)
        stream = Stream(self.options.data, "train")
        self.data_hash = stream.manifest.digest()
        if (wanted := stream.manifest.tokenizer["vocab"]) > cfg.model.vocab:
            raise GMTError(f"the data has {wanted} token ids, the model {cfg.model.vocab}: set model.vocab={wanted}")
        self.batches = TrainBatches(
            stream, cfg.model.context, train.micro_batch, train.accumulation, train.seed, *place
        )
        self.validation = ValidationBatches(
            Stream(self.options.data, "val"), cfg.model.context, cfg.validation.batch, cfg.validation.batches, *place
        )

    def _together(self, work: Callable[[], None]) -> None:
        """An error of one rank ends all ranks with one message."""
        problem = ""
        try:
            work()
        except GMTError as error:
            if self.parallel.world == 1:
                raise
            problem = str(error)
        self.parallel.raise_together(problem)

    def warn(self, message: str) -> None:
        self.tell("warning", {"message": message})

    def go(self) -> int:
        try:
            self._resume()
            with Interruption() as self.interruption:
                self.stepper.stopping = lambda: bool(self.interruption)
                try:
                    code = self._steps()
                finally:
                    self.loggers.close()
                self._together(self.writer.wait)
            return code
        finally:
            # while the writer runs, no other process may take the lock: its repair would remove a partial checkpoint
            if error := self.writer.join():
                self.warn(f"the last checkpoint was not written: {error}")
            self.lock.release()

    # --- resume ---

    def _resume(self) -> None:
        out = self.options.out
        path = agree_on_start(self.parallel, out, self.lock, self.options.resume, self.tell)
        if path is not None:
            self._together(lambda: self._check_same(read_progress(path)))
            self._together(lambda: self._load(path))
            self.tell("resumed", {"step": self.done, "path": str(path)})
        self.parallel.check_memory(self.lm)
        self._together(self._open_run)
        self.clock.append((monotonic(), self.done))

    def _load(self, path: Path) -> None:
        progress = load_state(path, self.lm, self.optimizer)
        self.done, self.best, self.pending = progress.step, progress.best, progress.validation_pending

    def _open_run(self) -> None:
        out = self.options.out
        if not self.parallel.main:
            return
        try:
            out.mkdir(parents=True, exist_ok=True)
            self.lock.take()
            (out / DIVERGED).unlink(missing_ok=True)
            self.loggers.open(self.cfg, self.done)
        except OSError as error:
            raise GMTError(f"cannot write to {out}: {error.strerror}") from None

    def _check_same(self, saved: Progress) -> None:
        found = differences(saved.config, self.cfg)
        if saved.data != self.data_hash:
            found.append(f"data: {saved.data[:16]} -> {self.data_hash[:16]} (hash of the data set)")
        if found and not self.options.force:
            raise GMTError(
                f"{self.options.out} was trained with other settings; add --force to continue with these:\n  "
                + "\n  ".join(found)
            )

    # --- steps ---

    def _steps(self) -> int:
        if self.pending and not self._validate():
            return self._leave()
        while self.done < self.schedule.steps:
            record = self.stepper(self.done)
            # the numbers of a step are read after the next one is launched, so that the host does not wait for a GPU
            stop = self._read()
            self.unread = record
            self.done += 1
            if self.schedule.validates_at(self.done):
                stop |= self._read()
                if not self._validate():
                    return self._leave()
            elif self.schedule.saves_at(self.done):
                stop |= self._read()
                self._save()
            if stop:
                return self._leave()
        self._read()
        return 0

    def _leave(self) -> int:
        """Save at this step boundary and return the exit code of an interruption."""
        self._read()
        if self.saved != (self.done, self.pending):
            self._save()
        self.tell("interrupted", {"step": self.done})
        return PREEMPTED

    def _read(self) -> bool:
        """Record the numbers of the last step; return whether a rank received a signal."""
        record, self.unread = self.unread, None
        if record is None:
            return bool(self.interruption) if self.parallel.world == 1 else False
        if not bool(record.good):
            why = not_finite(record, self.batches)
            if self.parallel.main:
                write_json(self.options.out / DIVERGED, {"step": record.step + 1, "why": why})
            raise GMTError(why)
        values, stop = step_values(record, self.cfg, self.schedule, self._pace(record.step + 1), self.parallel.world)
        if self.first_step and "n_eff_mean" in values:
            self.first_step = False
            check_routing(self.cfg, record.step + 1, values["n_eff_mean"], values["coverage"])
        self.loggers.log(record.step + 1, values)
        self.tell("step", {"step": record.step + 1, "steps": self.schedule.steps, **values})
        return stop or (self.parallel.world == 1 and bool(self.interruption))

    def _pace(self, done: int) -> float:
        """Tokens per second over the last steps, without the time of validations."""
        self.clock.append((monotonic(), done))
        (since, before), (now, _) = self.clock[0], self.clock[-1]
        per_step = self.batches.micro_batch * self.batches.accumulation * self.cfg.model.context
        return (done - before) * per_step / max(now - since, 1e-9)

    # --- validation ---

    def _validate(self) -> bool:
        """Validate, record and save; False where it was interrupted, with memory as before."""
        self.pending = True
        precision = autocast(self.parallel.device, self.cfg.train.precision)
        result = validate(
            self.lm,
            self.validation,
            self.cfg.validation.mode,
            share=self.parallel.share,
            autocast=precision,
            interrupted=lambda: self.parallel.any(bool(self.interruption)),
            tell=lambda done, total: self.tell("validating", {"done": done, "total": total}),
        )
        if result is None:
            return False
        self.pending = False
        values: dict[str, Any] = {"val_loss": result.loss, "val_perplexity": result.perplexity, "mode": result.mode}
        if self.lm.cells:
            values |= memory_diagnostics(self.lm.cells, self.cfg.dead_below)
        values |= sublayer_shares(self.lm, self.validation, self.parallel, precision)
        self.loggers.log(self.done, values)
        better = self.best is None or result.loss < self.best["loss"]
        if better:
            self.best = {"step": self.done, "loss": result.loss}
        self.tell("validation", {"step": self.done, **values, "best": better})
        if (better and self.cfg.save.best) or self.schedule.saves_at(self.done):
            self._save()
        if self.parallel.main:
            try:
                draw_curves(self.options.out)
            except Exception as error:  # a figure must not stop a run
                self.warn(f"curves.png was not drawn: {type(error).__name__}: {error}")
        self.clock = deque([(monotonic(), self.done)], maxlen=PACE_STEPS)
        return True

    # --- saving ---

    def _save(self) -> None:
        progress = Progress(
            step=self.done,
            config=self.cfg.to_dict(),
            data=self.data_hash,
            best=self.best,
            validation_pending=self.pending,
            memory=self.parallel.check_memory(self.lm),
            data_folder=os.path.relpath(self.options.data, self.options.out),
        )
        files = checkpoint_files(self.lm, self.optimizer, progress, self.options.data / "tokenizer.json")
        self._together(lambda: self.writer.save(progress, files) if self.parallel.main else None)
        self.saved = (self.done, self.pending)
        self.tell("saved", {"step": self.done})
