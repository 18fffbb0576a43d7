"""`gmt eval`: validation loss and tasks of one model, gathered into one file of results."""

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gmt import __version__
from gmt.data.batches import Stream, ValidationBatches
from gmt.data.tokenizer import digest, load_tokenizer
from gmt.errors import GMTError
from gmt.evaluate import arc
from gmt.evaluate.results import Metric, Results, TaskResult, ValidationResult
from gmt.evaluate.text_bytes import bits_per_byte, scored_bytes
from gmt.evaluate.validation import MODES, Validation, validate
from gmt.hf.load import Loaded, open_model
from gmt.model.bits import memory_hash
from gmt.model.device import auto_precision, autocast, pick_device
from gmt.model.memory_state import restore, snapshot
from gmt.utils.io import key_of, sha256_of

# told what is under way, how much of it is done, and how much there is; nothing of nothing is a plain remark
Listener = Callable[[str, int, int], None]

PAPER_TASKS = (arc.NAME, "arc_easy", "hellaswag", "piqa", "winogrande")
PAPER_BATCHES = 512
AS_SAVED, AS_LEFT = "as in the checkpoint", "as adaptive-carry validation left it"


@dataclass(frozen=True)
class EvalOptions:
    data: Path | None = None
    modes: tuple[str, ...] = ("frozen",)
    tasks: tuple[str, ...] | None = None
    task_data: Path | None = None
    tau: float | None = None
    paper: bool = False
    batch: int = 8
    batches: int | None = None  # as many as the model's run validates on
    limit: int | None = None
    shots: int | None = None  # as the task says
    device: str = "auto"
    precision: str = "auto"  # bf16 on a GPU, fp32 elsewhere
    out: Path | None = None
    harness: dict[str, Any] = field(default_factory=dict)


PLAIN = EvalOptions()


def paper_protocol(options: EvalOptions) -> EvalOptions:
    """The paper's: adaptive memory that keeps its writes, 512 batches of 8, zero-shot, bfloat16; tasks at τ_min."""
    fixed = {"tau": "tau", "modes": "mode", "batches": "batches", "shots": "shots", "precision": "precision"}
    for name, flag in fixed.items():
        if getattr(options, name) != getattr(PLAIN, name):
            raise GMTError(f"--paper sets the whole protocol: leave out --{flag}")
    tasks = PAPER_TASKS if options.tasks is None else options.tasks
    return replace(options, modes=("adaptive-carry",), tasks=tasks, shots=0, precision="bf16")


def evaluate(name: str | Path, options: EvalOptions, tell: Listener = lambda *_: None) -> Results:
    """Everything that was asked for. With `out`, what is in it already is not measured again."""
    if options.paper:
        options = paper_protocol(options)
    device = pick_device(options.device)
    precision = auto_precision(device) if options.precision == "auto" else options.precision
    options = replace(options, precision=precision, tasks=options.tasks or ())
    check_options(options)  # all that can be known to be wrong is told before hours of work
    loaded = open_model(name, device, options.tau)
    results = _begin(loaded, options)
    _keep(results, options)
    memory = AS_SAVED
    before = snapshot(loaded.lm)
    if options.data is not None:
        memory = _validations(loaded, options, results, tell)
    if options.paper:  # each of the paper's tables starts from the checkpoint
        restore(loaded.lm, before)
        memory = AS_SAVED
        loaded.lm.set_temperature(loaded.lm.cfg.temperature.min)
    for task in options.tasks or ():
        _task(loaded, task, options, results, memory, tell)
    return results


def check_options(options: EvalOptions) -> None:
    if options.data is None and not options.tasks:
        raise GMTError("nothing to evaluate: give --data for the validation loss, or --tasks")
    if not options.modes:
        raise GMTError(f"no memory mode is given; there are {', '.join(MODES)}")
    for mode in options.modes:
        if mode not in MODES:
            raise GMTError(f"there is no memory mode {mode!r}; there are {', '.join(MODES)}")
    if options.precision not in ("fp32", "bf16"):
        raise GMTError(f"there is no precision {options.precision!r}; there are auto, fp32 and bf16")
    if options.task_data is not None and not options.task_data.exists():
        raise GMTError(f"there is no {options.task_data} to read tasks from")
    if options.data is not None:
        Stream(options.data, "val")
    tasks = options.tasks or ()
    if arc.NAME in tasks:
        if options.shots:
            raise GMTError(f"{arc.NAME} is zero-shot, as in the paper; arc_easy of the harness takes --shots")
        if options.task_data is not None:
            arc.read_items(_arc_file(options.task_data))
    if names := [task for task in tasks if task != arc.NAME]:
        from gmt.evaluate import harness  # here, for it needs the optional lm_eval

        harness.check_options(options.harness)
        harness.check_tasks(names, options.task_data, options.shots)


def _begin(loaded: Loaded, options: EvalOptions) -> Results:
    cfg = loaded.lm.cfg
    model = {
        "name": loaded.name,
        "sha256": loaded.sha256,
        "step": loaded.step,
        "parameters": sum(p.numel() for p in loaded.lm.parameters()),
        "sublayer": cfg.model.sublayer,
    }
    vocabulary = loaded.vocabulary
    tokenizer = {"sha256": digest(vocabulary) if vocabulary else "", "vocab": cfg.model.vocab}
    results = Results(model, tokenizer, cfg.model.context)
    if options.out is not None and options.out.exists():
        old = Results.load(options.out)
        if old.model["sha256"] != loaded.sha256:
            raise GMTError(
                f"{options.out} holds the results of other weights ({old.model['name']}): choose another file"
            )
        results.validation, results.tasks, results.finished = old.validation, old.tasks, old.finished
    return results


def _made_with(loaded: Loaded, options: EvalOptions, batch: int, task: bool = False) -> dict[str, Any]:
    """How one number was measured; each keeps its own, since a file may hold those of several runs."""
    weights = str(loaded.lm.token_embedding.weight.dtype).removeprefix("torch.")
    made = {"batch": batch, "precision": options.precision, "weights": weights, "versions": _versions(options)}
    made |= {"device": str(loaded.lm.tau.device), "date": datetime.now(UTC).date().isoformat()}
    if task:
        made |= {"limit": options.limit, "harness_options": {k: str(v) for k, v in options.harness.items()}}
    return made


def _versions(options: EvalOptions) -> dict[str, str]:
    found = {"gmt": __version__, "python": platform.python_version()}
    packages = ["torch", "transformers", "tokenizers"]
    packages += ["lm_eval"] if any(task != arc.NAME for task in options.tasks or ()) else []
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def _validations(loaded: Loaded, options: EvalOptions, results: Results, tell: Listener) -> str:
    """Validation in each mode; says what memory is left for the tasks."""
    assert options.data is not None
    stream = Stream(options.data, "val")
    words = load_tokenizer(str(options.data / "tokenizer.json"))
    same_vocabulary(loaded, words, stream.manifest.tokenizer["vocab"], options.data)
    batch, most = options.batch, options.batches
    if options.paper:
        batch, most = PLAIN.batch, PAPER_BATCHES
    elif most is None:
        most = -(-loaded.validation_windows // batch)
    batches = ValidationBatches(stream, loaded.lm.cfg.model.context, batch, most)
    windows = key_of(stream.manifest.digest(), batches.context, batch, len(batches))
    left, tau = AS_SAVED, float(loaded.lm.tau)
    # a model without memory has nothing to adapt
    modes = options.modes if loaded.lm.cells else ("frozen",)
    for mode in sorted(modes, key=MODES.index):
        key = key_of(loaded.sha256, windows, mode, tau, options.precision)
        old = results.validation.get(mode)
        if old is not None and old.key == key and (mode != "adaptive-carry" or options.paper):
            tell(f"{mode} validation is in {options.out} already", 0, 0)
            continue
        before = snapshot(loaded.lm)
        found = validate(
            loaded.lm,
            batches,
            mode,
            autocast=autocast(loaded.lm.tau.device, options.precision),
            tell=lambda done, total, mode=mode: tell(f"{mode} validation", done, total),
        )
        assert found is not None  # nobody interrupts it
        text = scored_bytes(batches, words)
        memory = {"frozen": "memory takes no writes", "adaptive": "memory took writes and was restored"}.get(mode)
        if mode == "adaptive-carry":
            left = AS_LEFT
            memory = f"memory keeps the writes (centroids moved by {_moved(before):.1%} of their norm); tasks use it"
            memory = memory.replace("; tasks use it", "") if options.paper else memory
        results.validation[mode] = ValidationResult(
            loss=replace(Metric.of(found.losses), value=found.loss),
            perplexity=found.perplexity,
            bits_per_byte=bits_per_byte(found.nats, text) if text else None,
            tokens=found.tokens,
            batches=found.batches,
            data=stream.manifest.digest(),
            windows=windows,
            memory=str(memory),
            key=key,
            tau=tau if loaded.lm.cells else None,
            made_with=_made_with(loaded, options, batch),
        )
        _keep(results, options)
    return left


def validation_loss(loaded: Loaded, data: Path, windows: int, tell: Listener = lambda *_: None) -> Validation:
    """The loss with frozen memory over the first windows of the validation stream."""
    stream = Stream(data, "val")
    words = load_tokenizer(str(data / "tokenizer.json"))
    same_vocabulary(loaded, words, stream.manifest.tokenizer["vocab"], data)
    batch = PLAIN.batch if windows % PLAIN.batch == 0 else 1
    batches = ValidationBatches(stream, loaded.lm.cfg.model.context, batch, windows // batch)
    device = loaded.lm.tau.device
    found = validate(
        loaded.lm,
        batches,
        autocast=autocast(device, auto_precision(device)),
        tell=lambda done, total: tell("validation loss", done, total),
    )
    assert found is not None  # it has no reason to be interrupted
    return found


def _moved(before: list[Any]) -> float:
    """How far the centroids are from where they were, as a share of their norm, on average."""
    shares = [
        float(((now.detach() - then).norm(dim=-1) / then.norm(dim=-1)).mean()) for now, then in before if now.dim() == 2
    ]
    return sum(shares) / len(shares)


def same_vocabulary(loaded: Loaded, words: Tokenizer, ids: int, data: Path) -> None:
    if ids > loaded.lm.cfg.model.vocab:
        raise GMTError(f"{data} has {ids} token ids, the model {loaded.lm.cfg.model.vocab}: it is another tokenizer's")
    if loaded.vocabulary is not None and _spelling(loaded.vocabulary) != _spelling(words):
        raise GMTError(f"{data} was made with another tokenizer than {loaded.name}: their losses mean nothing together")


def _spelling(tokenizer: Tokenizer) -> Any:
    """Vocabulary and merges: how text becomes ids."""
    return json.loads(tokenizer.to_str())["model"]


def _task(loaded: Loaded, task: str, options: EvalOptions, results: Results, memory: str, tell: Listener) -> None:
    tau = float(loaded.lm.tau)
    key = key_of(
        loaded.sha256, memory_hash(loaded.lm), digest(loaded.words), task, tau, options.limit, options.shots,
        options.precision, _items_digest(task, options.task_data), options.harness,
        _versions(options).get("lm_eval") if task != arc.NAME else None,
    )  # fmt: skip
    done = results.finished.get(task, [])
    if done and all(name in results.tasks and results.tasks[name].key == key for name in done):
        tell(f"{task} is in {options.out} already", 0, 0)
        return
    found = run_one(loaded, task, options, tell)
    for name, result in found.items():
        result.key, result.memory = key, memory if loaded.lm.cells else "none"
        result.tau = tau if loaded.lm.cells else None
        result.made_with |= _made_with(loaded, options, options.batch, task=True)
        results.tasks[name] = result
    results.finished[task] = list(found)
    _keep(results, options)


def run_one(loaded: Loaded, task: str, options: EvalOptions, tell: Listener = lambda *_: None) -> dict[str, TaskResult]:
    """One task on a model as it stands, whatever it is just now."""
    if task == arc.NAME:
        return {task: _standalone(loaded, options, tell)}
    from gmt.evaluate.harness import run_task  # here, for it needs the optional lm_eval

    tell(f"{task}, by the LM evaluation harness", 0, 0)
    return run_task(
        loaded,
        task,
        batch=options.batch,
        limit=options.limit,
        shots=options.shots,
        data=options.task_data,
        precision=options.precision,
        options=options.harness,
    )


def _items_digest(task: str, data: Path | None) -> str | None:
    """Of the local files that a task is read from; what the hub has is not looked at."""
    if data is None:
        return None
    if task == arc.NAME:
        return sha256_of(_arc_file(data))
    from gmt.evaluate.harness import task_files

    return key_of([(split, sha256_of(path)) for split, path in task_files(task, data).items()])


def _arc_file(data: Path) -> Path:
    return data / "arc_easy_test.jsonl" if data.is_dir() else data


def _standalone(loaded: Loaded, options: EvalOptions, tell: Listener) -> TaskResult:
    path = options.task_data
    items = arc.read_items(path and _arc_file(path), options.limit)
    total = sum(len(item.choices) for item in items)
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        tell(arc.NAME, done, total)

    return arc.arc_easy(
        loaded.lm,
        loaded.words,
        items,
        options.batch,
        autocast=autocast(loaded.lm.tau.device, options.precision),
        tell=told,
    )


def _keep(results: Results, options: EvalOptions) -> None:
    if options.out is not None:
        results.save(options.out)
