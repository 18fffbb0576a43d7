"""The runs of a study as processes of their own: several side by side, one's failure is not another's."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from gmt import __version__
from gmt.checkpoint.format import MANIFEST
from gmt.checkpoint.store import FOLDER as CHECKPOINTS
from gmt.checkpoint.store import list_checkpoints
from gmt.data.batches import Stream
from gmt.errors import GMTError
from gmt.model.flops import training_flops
from gmt.study.file import Study, tokens_per_step
from gmt.study.plan import CONFIG, RECORD, Wanted, check_distinct, finished, gather, read_record, runs_of
from gmt.study.result import Result
from gmt.train.loop import DIVERGED, PREEMPTED
from gmt.train.metrics import RECORD as METRICS
from gmt.train.metrics import has_record, last_step
from gmt.train.plan import parameters
from gmt.train.signals import Interruption
from gmt.utils.io import write_atomic, write_json
from gmt.utils.outputs import OutputFolder, remove_files

LOG = "train.log"
LOOK = 0.5  # seconds between two looks at the processes
GRACE = 120  # seconds in which a run must have saved

# told what happens: "started", "finished", "failed", "progress"; and its values
Listener = Callable[[str, dict[str, Any]], None]


class RunOptions(NamedTuple):
    data: Path
    out: Path
    side_by_side: int = 1  # processes a device
    devices: tuple[str, ...] = ("",)  # values of CUDA_VISIBLE_DEVICES; the empty one leaves it as it is
    keep_checkpoints: bool = True
    only: tuple[str, ...] = ()  # arms; none for all
    force: bool = False  # add the runs to a folder that contains other files


def pick_devices(asked: tuple[str, ...]) -> tuple[str, ...]:
    """One place for each GPU asked for, or for each that can be seen."""
    count = torch.cuda.device_count()
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = tuple(seen or map(str, range(count)))
    if unknown := [name for name in asked if name not in names]:
        raise GMTError(f"there is no GPU {', '.join(unknown)}; there are {', '.join(names) or 'none'}")
    return asked or (names if count > 1 else ("",))


class Process:
    """One run that is under way."""

    def __init__(self, run: Wanted, options: RunOptions, device: str, data: str, fresh_retry: bool = False) -> None:
        self.run, self.folder, self.device = run, run.folder(options.out), device
        self.folder.mkdir(parents=True, exist_ok=True)
        places = options.side_by_side * len(options.devices)
        self.record = {
            "arm": run.arm,
            "rate": run.rate,
            "seed": run.seed,
            "data": data,
            "parameters": parameters(run.cfg),
            "flops": training_flops(run.cfg),
            "side_by_side": options.side_by_side,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "versions": {"gmt": __version__, "torch": torch.__version__},
        }
        if fresh_retry and not list_checkpoints(self.folder):
            # the first try of this command wrote this record and no checkpoint: there is nothing to resume
            (self.folder / METRICS).unlink(missing_ok=True)
        self.had_record = has_record(self.folder)
        write_json(self.folder / RECORD, self.record)
        config = self.folder / CONFIG
        write_atomic(config, yaml.safe_dump(run.cfg.to_dict(), sort_keys=False))
        command = [sys.executable, "-m", "gmt", "train", str(config)]
        command += ["--resume", "--data", str(options.data), "--out", str(self.folder)]
        # a number of threads that the user set takes precedence
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // places)), **os.environ}
        if device:
            environment["CUDA_VISIBLE_DEVICES"] = device
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            self.log_begins = log.tell()  # what an earlier try wrote stands before it
            # its own process group: Ctrl-C reaches this process only, which then stops the runs in order
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def steps_done(self) -> int:
        return last_step(self.folder / METRICS)

    def end(self, out: Path, keep_checkpoints: bool) -> str | None:
        """Note how it ended; returns why it failed, if it did."""
        diverged = self.folder / DIVERGED
        if self.process.returncode and not diverged.exists():
            return self.last_words()
        ended: dict[str, Any] = {"finished": datetime.now(UTC).isoformat(timespec="seconds")}
        if diverged.exists():
            ended["diverged"] = json.loads(diverged.read_text(encoding="utf-8"))
        write_json(self.folder / RECORD, self.record | ended)
        if finished(self.run, out) is None:
            write_json(self.folder / RECORD, self.record)
            return f"it ended without a last validation in {self.folder}: remove that folder to run it anew"
        if not keep_checkpoints:
            remove_checkpoints(self.folder)
        return None

    def last_words(self) -> str:
        """The last error of the log, with what belongs to it."""
        text = (self.folder / LOG).read_bytes()[self.log_begins :].decode("utf-8", errors="replace").strip()
        lines = text.replace("\r", "\n").splitlines()
        errors = [number for number, line in enumerate(lines) if line.startswith("error:")]
        words = " ".join(" ".join(lines[errors[-1] :] if errors else lines[-1:]).split())
        return words or f"it ended with {self.process.returncode}"


def remove_checkpoints(run: Path) -> None:
    """Remove the files that are named in the manifests of the checkpoints, then empty folders."""
    for checkpoint in list_checkpoints(run):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # not a checkpoint
            listed = json.loads((checkpoint.path / MANIFEST).read_text(encoding="utf-8"))["sha256"].keys()
            # the manifest last, since it names the files that are left after a kill
            remove_files(run, [f"{checkpoint.path.relative_to(run).as_posix()}/{name}" for name in (*listed, MANIFEST)])
    with contextlib.suppress(OSError):  # not empty
        (run / CHECKPOINTS).rmdir()


class Outcome(NamedTuple):
    failed: dict[str, str]  # run -> its last words
    stopped: signal.Signals | None = None  # by what we were told to stop
    saved: int = 0  # runs that were under way then, and go on from where they are


def run_study(study: Study, options: RunOptions, tell: Listener = lambda *_: None) -> Outcome:
    """Run what is missing."""
    try:
        return Runner(study, options, tell).go()
    except OSError as error:
        raise GMTError(f"cannot write to {error.filename or options.out}: {error.strerror}") from None


def results_folder(out: Path, force: bool = False) -> OutputFolder:
    """Open a folder of `gmt study`. The files of a run that are not listed are recognised by its record.

    Version 0.1.0 kept no list, and two studies that run at the same time replace the list of each other.
    """

    def recorded(run: Path) -> bool:
        record: Any = read_record(run)
        return isinstance(record, dict) and {"arm", "rate", "seed", "data"} <= record.keys()

    before = any(recorded(path.parent) for path in (out / "runs").glob(f"*/{RECORD}"))
    return OutputFolder(out, "study", force=force or before, earlier=lambda name: recorded((out / name).parent))


class Runner:
    def __init__(self, study: Study, options: RunOptions, tell: Listener) -> None:
        check_distinct(study)
        self.output = results_folder(options.out, options.force)
        self.study, self.options, self.tell = study, options, tell
        self.data = Stream(options.data, "train").manifest.digest()
        self.places = [device for _ in range(options.side_by_side) for device in options.devices]
        self.arms = options.only or tuple(study.arms)
        if unknown := [arm for arm in self.arms if arm not in study.arms]:
            raise GMTError(f"there is no arm {', '.join(map(repr, unknown))}; there are {', '.join(study.arms)}")
        self.under_way: list[Process] = []
        self.failed: dict[Wanted, str] = {}
        self.recorded: set[Wanted] = set()  # had a record before this command: it is never removed
        self.again: set[Wanted] = set()  # failed beside others, and to be tried alone
        self.tried_again = options.side_by_side == 1  # who runs alone has nobody who took its memory
        self.results: list[Result] = []

    def go(self) -> Outcome:
        with Interruption() as interruption:
            try:
                while self._start() or self._try_again():
                    while not interruption and all(process.running for process in self.under_way):
                        time.sleep(LOOK)
                        self.tell("progress", self._progress())
                    if interruption:
                        stop(self.under_way)
                        saved = sum(p.process.returncode == PREEMPTED for p in self.under_way)
                        return Outcome(self._told(), interruption.received, saved)
                    self._collect()
            finally:
                stop(self.under_way)
        return Outcome(self._told())

    def _told(self) -> dict[str, str]:
        return {run.name: why for run, why in self.failed.items()}

    def _start(self) -> bool:
        """Fill the free places with what is missing; False when nothing is left to wait for."""
        self.results, missing = gather(self.study, self.options.out, self.data)
        self.results = [result for result in self.results if result.arm in self.arms]
        busy = {process.run.digest for process in self.under_way}
        free = list(self.options.devices if self.again else self.places)
        for process in self.under_way:
            free.remove(process.device)
        for run in missing:
            if free and run.arm in self.arms and run.digest not in busy and run not in self.failed:
                folder = run.folder(self.options.out).relative_to(self.options.out).as_posix()
                self.output.reserve(*(f"{folder}/{name}" for name in (RECORD, CONFIG, LOG)))
                self.under_way.append(
                    Process(run, self.options, free.pop(0), self.data, run in self.again and run not in self.recorded)
                )
                busy.add(run.digest)
                if self.under_way[-1].had_record and run not in self.again:
                    self.recorded.add(run)
                self.tell("started", {"run": run.name, "folder": self.under_way[-1].folder})
        self.tell("progress", self._progress())
        return bool(self.under_way)

    def _try_again(self) -> bool:
        """Once, when all others have ended and one at a time on a device: side by side a run may have lacked memory."""
        if self.tried_again or not self.failed:
            return False
        self.tried_again, self.again, self.failed = True, set(self.failed), {}
        return self._start()

    def _collect(self) -> None:
        for process in [p for p in self.under_way if not p.running]:
            self.under_way.remove(process)
            self.again.discard(process.run)
            why = process.end(self.options.out, self.options.keep_checkpoints)
            if why is None:
                diverged = "diverged" in read_record(process.folder)
                self.tell("diverged" if diverged else "finished", {"run": process.run.name, "folder": process.folder})
            else:
                self.failed[process.run] = why
                self.tell("failed", {"run": process.run.name, "why": why})

    def _progress(self) -> dict[str, Any]:
        """In tokens, of all that this command is to run; a run that failed or diverged counts as done with."""
        each = {arm: self._tokens(arm) for arm in self.arms}
        runs = {arm: runs_of(self.study, arm) for arm in self.arms}
        done = {p.run: p.steps_done() * tokens_per_step(p.run.cfg) for p in self.under_way}
        ended = [result.arm for result in self.results] + [run.arm for run in self.failed]
        return {
            "runs": sum(runs.values()),
            "finished": len(self.results),
            "under_way": {run.name: tokens / run.tokens for run, tokens in done.items()},
            "failed": len(self.failed),
            "tokens": sum(each[arm] for arm in ended) + sum(done.values()),
            "of": sum(each[arm] * runs[arm] for arm in self.arms),
        }

    def _tokens(self, arm: str) -> int:
        per_step = tokens_per_step(self.study.arms[arm])
        return self.study.tokens // per_step * per_step


def stop(under_way: list[Process]) -> None:
    """Each saves at its step boundary and goes; one that does not is ended."""
    for process in under_way:
        if process.running:
            process.process.send_signal(signal.SIGTERM)
    until = time.monotonic() + GRACE
    for process in under_way:
        try:
            process.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.process.pid, signal.SIGKILL)
            process.process.wait()
