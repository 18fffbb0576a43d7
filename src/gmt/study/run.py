"""The runs of a study as processes of their own: several side by side, one's failure is not another's."""

import os
import shutil
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

from gmt.data.batches import Stream
from gmt.data.manifest import write_json
from gmt.study.file import Study, tokens_per_step
from gmt.study.plan import RECORD, Wanted, gather, runs_in_all
from gmt.study.result import Result
from gmt.train.metrics import read_metrics
from gmt.train.run import PREEMPTED
from gmt.train.signals import Interruption

LOOK = 0.5  # seconds between two looks at the processes

# told what happens: "begin", "started", "finished", "failed", "progress"; and its values
Listener = Callable[[str, dict[str, Any]], None]


class RunOptions(NamedTuple):
    data: Path
    out: Path
    side_by_side: int = 1  # processes a device
    devices: tuple[str, ...] = ("",)  # values of CUDA_VISIBLE_DEVICES; the empty one leaves it as it is
    keep_checkpoints: bool = True


def all_devices() -> tuple[str, ...]:
    """One place for each GPU that can be seen."""
    count = torch.cuda.device_count()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = tuple(name for name in seen.split(",") if name) or tuple(map(str, range(count)))
    return names if count > 1 else ("",)


class Process:
    """One run that is under way."""

    def __init__(self, run: Wanted, options: RunOptions, device: str, data: str, threads: int) -> None:
        self.run, self.folder, self.device = run, run.folder(options.out), device
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record = run.record(data)
        write_json(self.folder / RECORD, self.record)
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump(run.cfg.to_dict(), sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", "gmt", "train", str(config), "--resume"]
        command += ["--data", str(options.data), "--out", str(self.folder)]
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}  # who set it knows better
        if device:
            environment["CUDA_VISIBLE_DEVICES"] = device
        with (self.folder / "train.log").open("a", encoding="utf-8") as log:
            # a group of its own: Ctrl-C at the terminal reaches us, and we tell it in our own way
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def steps_done(self) -> int:
        lines = read_metrics(self.folder / "metrics.jsonl")
        return max((line["step"] for line in lines), default=0)

    def finish(self, keep_checkpoints: bool) -> None:
        write_json(self.folder / RECORD, self.record | {"finished": datetime.now(UTC).isoformat(timespec="seconds")})
        if not keep_checkpoints:
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)

    def last_words(self) -> str:
        text = (self.folder / "train.log").read_text(encoding="utf-8", errors="replace").strip()
        return text.splitlines()[-1] if text else f"it ended with {self.process.returncode}"


class Outcome(NamedTuple):
    failed: dict[str, str]  # run -> its last words
    stopped: signal.Signals | None = None  # by what we were told to stop
    saved: int = 0  # runs that were under way then, and go on from where they are


def run_study(study: Study, options: RunOptions, tell: Listener = lambda *_: None) -> Outcome:
    """Run what is missing."""
    return Runner(study, options, tell).go()


class Runner:
    def __init__(self, study: Study, options: RunOptions, tell: Listener) -> None:
        self.study, self.options, self.tell = study, options, tell
        self.data = Stream(options.data, "train").manifest.digest()
        self.places = [device for _ in range(options.side_by_side) for device in options.devices]
        self.threads = max(1, (os.cpu_count() or 1) // len(self.places))
        self.under_way: list[Process] = []
        self.failed: dict[str, str] = {}
        self.results: list[Result] = []

    def go(self) -> Outcome:
        with Interruption() as interruption:
            try:
                while self._start():
                    while not interruption and all(process.running for process in self.under_way):
                        time.sleep(LOOK)
                        self.tell("progress", self._progress())
                    if interruption:
                        stop(self.under_way)
                        saved = sum(p.process.returncode == PREEMPTED for p in self.under_way)
                        return Outcome(self.failed, interruption.received, saved)
                    self._collect()
            finally:
                stop(self.under_way)
        return Outcome(self.failed)

    def _start(self) -> bool:
        """Fill the free places with what is missing; False when nothing is left to wait for."""
        self.results, missing = gather(self.study, self.options.out, self.data)
        busy = {process.run.digest for process in self.under_way}
        free = list(self.places)
        for process in self.under_way:
            free.remove(process.device)
        for run in missing:
            if free and run.digest not in busy and name_of(run) not in self.failed:
                self.under_way.append(Process(run, self.options, free.pop(0), self.data, self.threads))
                busy.add(run.digest)
                self.tell("started", {"run": name_of(run), "folder": self.under_way[-1].folder})
        self.tell("progress", self._progress())
        return bool(self.under_way)

    def _collect(self) -> None:
        for process in [p for p in self.under_way if not p.running]:
            self.under_way.remove(process)
            name = name_of(process.run)
            if process.process.returncode == 0:
                process.finish(self.options.keep_checkpoints)
                self.tell("finished", {"run": name, "folder": process.folder})
            else:
                self.failed[name] = process.last_words()
                self.tell("failed", {"run": name, "why": self.failed[name]})

    def _progress(self) -> dict[str, Any]:
        done = {p.run: p.steps_done() * tokens_per_step(p.run.cfg) for p in self.under_way}
        runs = runs_in_all(self.study)
        return {
            "runs": runs,
            "finished": len(self.results),
            "under_way": {name_of(run): tokens / run.tokens for run, tokens in done.items()},
            "failed": len(self.failed),
            "tokens": sum(r.training[-1][0] for r in self.results if r.training) + sum(done.values()),
            "of": runs * self.study.tokens,
        }


def stop(under_way: list[Process]) -> None:
    """Each saves at its step boundary and goes."""
    for process in under_way:
        if process.running:
            process.process.send_signal(signal.SIGTERM)
    for process in under_way:
        process.process.wait()


def name_of(run: Wanted) -> str:
    return f"{run.arm}, rate {run.rate:g}, seed {run.seed}"
