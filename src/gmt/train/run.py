"""A run of training, from a configuration to checkpoints."""

import contextlib
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

from gmt.checkpoint.format import Progress, read_progress
from gmt.checkpoint.state import load_state
from gmt.checkpoint.writer import CheckpointWriter
from gmt.config import GMTConfig
from gmt.config.compare import differences
from gmt.data.batches import Stream, TrainBatches, ValidationBatches
from gmt.errors import GMTError
from gmt.evaluate.shares import residual_shares
from gmt.evaluate.validation import validate
from gmt.memory import losses
from gmt.memory.diagnostics import USAGE_NAMES, memory_diagnostics
from gmt.model.device import autocast, pick_device
from gmt.model.flops import training_flops
from gmt.train.curves import draw_curves
from gmt.train.lock import Lock
from gmt.train.metrics import Logger, open_loggers
from gmt.train.optimizer import make_optimizer
from gmt.train.parallel import Parallel
from gmt.train.resume import agree_on_start
from gmt.train.saving import checkpoint_files
from gmt.train.schedule import Schedule
from gmt.train.signals import Interruption
from gmt.train.start import build, centroids_from_data
from gmt.train.step import NUMBERS, Stepper, StepRecord
from gmt.train.trust import check_kernels, check_routing
from gmt.utils.io import write_json

PREEMPTED = 75
DIVERGED = "diverged.json"  # what is left of a run that came upon a number that is not finite

# events: step, validating, validation, saved, fresh, resumed, damaged, warning, interrupted
Listener = Callable[[str, dict[str, Any]], None]


class Options(NamedTuple):
    data: Path
    out: Path
    resume: bool = False
    force: bool = False


class Run:
    """One process's part of a run."""

    def __init__(self, cfg: GMTConfig, options: Options, tell: Listener = lambda *_: None) -> None:
        self.cfg, self.options = cfg, options
        self.parallel = Parallel(pick_device(cfg.train.device), cfg.train.parallel)
        self.tell = tell if self.parallel.main else lambda *_: None
        train, place = cfg.train, (self.parallel.rank, self.parallel.world)
        stream = Stream(options.data, "train")
        self.data_hash = stream.manifest.digest()
        if stream.manifest.tokenizer["vocab"] > cfg.model.vocab:
            wanted = stream.manifest.tokenizer["vocab"]
            raise GMTError(f"the data has {wanted} token ids, the model {cfg.model.vocab}: set model.vocab={wanted}")
        self.batches = TrainBatches(
            stream, cfg.model.context, train.micro_batch, train.accumulation, train.seed, *place
        )
        self.validation = ValidationBatches(
            Stream(options.data, "val"), cfg.model.context, cfg.validation.batch, cfg.validation.batches, *place
        )
        self.schedule = Schedule(cfg, self.batches.steps_per_epoch)
        self.lm = build(cfg, self.parallel.device)
        check_kernels(self.lm, self.parallel.device, train.micro_batch // self.parallel.world * cfg.model.context)
        if cfg.memory.init == "k-means" and self.lm.cells:
            with autocast(self.parallel.device, train.precision):
                centroids_from_data(self.lm, self.batches)
        self.model = self.parallel.wrap(self.lm, train.compile)
        self.optimizer = make_optimizer(self.lm, cfg)
        self.stepper = Stepper(self.lm, self.model, self.optimizer, self.batches, self.schedule, self.parallel)
        self.writer = CheckpointWriter(
            options.out, cfg.save.keep, lambda message: self.tell("warning", {"message": message})
        )
        self.loggers: list[Logger] = []
        self.lock = Lock(options.out)
        self.done, self.best, self.pending = 0, None, False
        self.saved: tuple[int, bool] | None = None
        self.unread: StepRecord | None = None
        self.looked = False  # at the routing of this process's first step
        self.clock: deque[tuple[float, int]] = deque(maxlen=20)

    # --- the loop ------------------------------------------------------------------------------------------------

    def go(self) -> int:
        """Train to the end, or to an interruption; returns the exit code."""
        try:
            self._begin()
            return self._go()
        finally:
            self.lock.release()

    def _go(self) -> int:
        with Interruption() as self.interruption:
            self.stepper.stopping = lambda: bool(self.interruption)
            try:
                code = self._loop()
            except OSError as error:
                why = error.strerror or error
                raise GMTError(f"cannot write to {self.options.out}: {why}; earlier checkpoints are complete") from None
            finally:
                for logger in self.loggers:
                    with contextlib.suppress(OSError):
                        logger.close()
            self.writer.wait()
        self.parallel.barrier()
        return code

    def _loop(self) -> int:
        if self.pending and not self._validate():
            return self._leave()
        while self.done < self.schedule.steps:
            record = self.stepper(self.done)
            stop = self._read()  # of the step before: by now it is finished, so that nobody waits
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
        """Save at this step boundary and go."""
        self._read()
        if self.saved != (self.done, self.pending):
            self._save()
        self.tell("interrupted", {"step": self.done})
        return PREEMPTED

    def _read(self) -> bool:
        """Bring the last step's numbers to the host, record them, and say whether some rank was told to stop."""
        record, self.unread = self.unread, None
        if record is None:
            return bool(self.interruption) if self.parallel.world == 1 else False
        numbers = dict(zip(NUMBERS, record.numbers.mean(0).tolist(), strict=True))
        if not bool(record.good):
            why = self._what_went_wrong(record)
            if self.parallel.main:
                write_json(self.options.out / DIVERGED, {"step": record.step + 1, "why": why})
            raise GMTError(why)
        recorded = ("task", *losses.TERMS) if self.lm.cells else ("task",)
        values = {name: numbers[name] for name in recorded}
        weights, share = self.cfg.losses, self.schedule.aux_weight(record.step)
        values["loss"] = values["task"] + share * sum(getattr(weights, n) * v for n, v in values.items() if n != "task")
        values |= {"grad_norm": float(record.norm), "learning_rate": record.learning_rate, "tau": record.tau}
        if record.usage is not None:
            values |= dict(zip(USAGE_NAMES, record.usage.tolist(), strict=True))
            if not self.looked:
                self.looked = True
                check_routing(self.cfg, record.step + 1, values["n_eff_mean"], values["coverage"])
            values |= {"dead": int(record.dead), "resets": record.resets, "merges": record.merges}
        values["tokens_per_second"] = self._pace(record.step + 1)
        values["tflops"] = values["tokens_per_second"] * training_flops(self.cfg) / 1e12 / self.parallel.world
        self._log(record.step + 1, values)
        self.tell("step", {"step": record.step + 1, "steps": self.schedule.steps, **values})
        return numbers["stop"] > 0 or (self.parallel.world == 1 and bool(self.interruption))

    def _pace(self, done: int) -> float:
        """Tokens a second over the last steps, without the time of validations."""
        self.clock.append((monotonic(), done))
        (since, before), (now, _) = self.clock[0], self.clock[-1]
        per_step = self.batches.micro_batch * self.batches.accumulation * self.cfg.model.context
        return (done - before) * per_step / max(now - since, 1e-9)

    def _what_went_wrong(self, record: StepRecord) -> str:
        bad = {name.removeprefix("bad_") for name in NUMBERS if name.startswith("bad_")}
        rows = record.numbers.tolist()
        found = [
            (micro, term)
            for micro, row in enumerate(rows)
            for term in sorted(bad)
            if row[NUMBERS.index(f"bad_{term}")] > 0
        ]
        terms = sorted({term for _, term in found}) or ["the gradient"]
        micros = sorted({micro for micro, _ in found}) or range(len(rows))
        windows = [w for micro in micros for w in self.batches.whole(record.step, micro).tolist()]
        return (
            f"step {record.step + 1}: {', '.join(terms)} is not finite, on windows {windows} of the training stream; "
            f"it reached neither weights nor memory, and no checkpoint was written over"
        )

    # --- validation and checkpoints --------------------------------------------------------------------------------

    def _validate(self) -> bool:
        """Validate, record and save; False where it was interrupted, with everything as before."""
        self.pending = True
        result = validate(
            self.lm,
            self.validation,
            self.cfg.validation.mode,
            share=self.parallel.share,
            autocast=autocast(self.parallel.device, self.cfg.train.precision),
            interrupted=lambda: self.parallel.any(bool(self.interruption)),
            tell=lambda done, total: self.tell("validating", {"done": done, "total": total}),
        )
        if result is None:
            return False
        self.pending = False
        values: dict[str, Any] = {"val_loss": result.loss, "val_perplexity": result.perplexity, "mode": result.mode}
        if self.lm.cells:
            values |= memory_diagnostics(self.lm.cells, self.cfg.dead_below)
        values |= self._shares()
        self._log(self.done, values)
        better = self.best is None or result.loss < self.best["loss"]
        if better:
            self.best = {"step": self.done, "loss": result.loss}
        self.tell("validation", {"step": self.done, **values, "best": better})
        if (better and self.cfg.save.best) or self.schedule.saves_at(self.done):
            self._save()
        if self.parallel.main:
            draw_curves(self.options.out)
        self.clock = deque([(monotonic(), self.done)], maxlen=20)
        return True

    def _shares(self) -> dict[str, list[float]]:
        """How much each sublayer adds, on the first validation batch of all ranks."""
        ids = torch.from_numpy(self.validation.at(0).ids).to(self.parallel.device)
        rows = len(ids)
        if not rows:  # a rank without rows still takes part, and counts for nothing
            ids = ids.new_zeros(1, self.cfg.model.context)
        with autocast(self.parallel.device, self.cfg.train.precision):
            found = residual_shares(self.lm, ids)
        total = self.parallel.share(None, torch.stack([torch.ones_like(found[0]), *found]) * rows)[1]
        attention, second = (total[1:] / total[0]).tolist()
        return {"attention_share": attention, "second_share": second if self.cfg.model.sublayer != "none" else []}

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
        if self.parallel.main:
            self.writer.save(progress, files)
        self.saved = (self.done, self.pending)
        self.tell("saved", {"step": self.done})

    # --- beginning -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        out = self.options.out
        path = agree_on_start(self.parallel, out, self.lock, self.options.resume, self.tell)
        if path is not None:
            self._check_same(read_progress(path))
            progress = load_state(path, self.lm, self.optimizer)
            self.done, self.best, self.pending = progress.step, progress.best, progress.validation_pending
            self.tell("resumed", {"step": self.done, "path": str(path)})
        self.parallel.check_memory(self.lm)
        if self.parallel.main:
            try:
                out.mkdir(parents=True, exist_ok=True)
                self.lock.take()
                (out / DIVERGED).unlink(missing_ok=True)
                self.loggers = open_loggers(out, self.cfg, self.done)
            except OSError as error:
                raise GMTError(f"cannot write to {out}: {error.strerror}") from None
        self.clock.append((monotonic(), self.done))

    def _check_same(self, saved: Progress) -> None:
        found = differences(saved.config, self.cfg)
        if saved.data != self.data_hash:
            found.append(f"data: {saved.data[:16]} -> {self.data_hash[:16]} (hash of the data set)")
        if found and not self.options.force:
            raise GMTError(
                f"{self.options.out} was trained with other settings; --force to go on all the same:\n  "
                + "\n  ".join(found)
            )

    def _log(self, step: int, values: dict[str, Any]) -> None:
        for logger in self.loggers:
            logger.log(step, values)
