"""The LM evaluation harness: its tasks, prompts and metrics, on our models. The one file that imports lm_eval.

Importing this registers the model as `gmt`, so that the harness's own interface knows it too:
`lm_eval.simple_evaluate(model="gmt", model_args={"pretrained": "runs/base"}, tasks=["arc_easy"])`.
"""

# the harness resolves its names lazily, so that a type checker sees other signatures than there are
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportTypedDictNotRequiredAccess=false
# pyright: reportArgumentType=false

import hashlib
import inspect
import json
import logging
import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from gmt.errors import DataError, GMTError, first_line
from gmt.evaluate.results import Metric, TaskResult
from gmt.hf.load import Loaded, open_model

try:
    import lm_eval
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
except ImportError as error:
    raise GMTError(f"harness tasks need lm_eval ({error}): pip install 'graph-memory-transformer[eval]'") from None

# what `gmt eval` sets itself
OWN = {"model", "model_args", "tasks", "task_manager", "limit", "num_fewshot", "batch_size", "device", "log_samples"}
# those of the harness's model that still mean something once the model is loaded
OF_MODEL = {
    "add_bos_token", "chat_template_args", "enable_thinking", "logits_cache", "max_batch_size", "max_length",
    "mixed_precision_dtype", "prefix_token_id", "softmax_dtype", "think_end_token", "truncation",
}  # fmt: skip
SPLITS = ("train", "validation", "test")


@register_model("gmt")
class GMTHarness(HFLM):
    """A model directory, a run, a hub name or a loaded model, as the harness wants it."""

    def __init__(
        self,
        pretrained: Any,
        tokenizer: Any = None,
        device: str | None = "cpu",
        tau: float | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(pretrained, str | Path):
            loaded = open_model(pretrained, device or "cpu", tau)
            pretrained, tokenizer = loaded.model, loaded.tokenizer
        super().__init__(pretrained=pretrained, tokenizer=tokenizer, device=device, backend="causal", **kwargs)

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        narrow = self.mixed_precision_dtype is not None
        with torch.no_grad(), torch.autocast(self.device.type, self.mixed_precision_dtype, narrow):
            # the past is not kept: a scored text is not gone on with
            return self.model(inps, use_cache=False).logits

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        """Cuts a continuation that is longer than the context from the left too; the harness would stop at it."""
        fitting = []
        for texts, context, continuation in requests:
            if texts is not None and not texts[1].strip():
                raise DataError(f"a choice after {texts[0][-60:]!r} is empty")
            if len(continuation) > self.max_length:
                context, continuation = [*context, *continuation][: -self.max_length], continuation[-self.max_length :]
            fitting.append((texts, context, continuation))
        return super()._loglikelihood_tokens(fitting, *args, **kwargs)


def check_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the harness that pass through: those of `simple_evaluate`, and those of its model."""
    evaluate = set(inspect.signature(lm_eval.simple_evaluate).parameters) - OWN
    for name in options:
        if name not in evaluate | OF_MODEL:
            near = get_close_matches(name, evaluate | OF_MODEL, 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise GMTError(f"the harness has no option {name!r} that passes through{hint}")
    return {n: v for n, v in options.items() if n in evaluate}, {n: v for n, v in options.items() if n in OF_MODEL}


def check_tasks(names: list[str], data: Path | None, shots: int | None) -> None:
    """Every task is there, and its data too where it is local."""
    for name in names:
        if data is not None:
            local_task(name, official_file(name), data, shots)
        elif not all_tasks().match_tasks([name]):
            near = get_close_matches(name, all_tasks().all_tasks, 3)
            raise GMTError(f"the harness has no task {name!r}" + (f"; near it are {', '.join(near)}" if near else ""))


@cache  # reading all of its task files takes seconds
def all_tasks() -> Any:
    return TaskManager()


def run_task(
    loaded: Loaded,
    name: str,
    *,
    batch: int = 8,
    limit: int | None = None,
    shots: int | None = 0,
    data: Path | None = None,
    precision: str = "fp32",
    options: dict[str, Any] | None = None,
) -> dict[str, TaskResult]:
    """One task or group of the harness: results by task, with every item's mark."""
    evaluate, model = check_options(options or {})
    # it remarks on every model that is passed as an object, which is the only way we pass one
    logging.getLogger("lm_eval").setLevel(evaluate.get("verbosity", "ERROR"))
    device = loaded.lm.tau.device
    if precision == "bf16":
        model.setdefault("mixed_precision_dtype", torch.bfloat16)
    # logits are scored in float32, whatever computed them
    model.setdefault("softmax_dtype", torch.float32)
    adapter = GMTHarness(loaded.model, loaded.tokenizer, str(device), batch_size=batch, **model)
    with _task_manager(name, data, shots) as manager:
        try:
            found = lm_eval.simple_evaluate(
                model=adapter,
                tasks=[name],
                num_fewshot=shots,
                limit=limit,
                task_manager=manager,
                log_samples=True,
                **evaluate,
            )
        except GMTError:
            raise
        except OSError as error:
            raise DataError(
                f"the data of {name} is not to be had: {first_line(error)}; --task-data takes local files"
            ) from None
        except Exception as error:  # its assertions and its tasks' own code: a traceback would tell a user less
            raise GMTError(f"the harness stopped at {name}: {type(error).__name__}: {first_line(error)}") from error
    assert found is not None
    tasks = {task: _result(found, task) for task in found["samples"]}
    groups = {group: _group(found, group, tasks) for group in found["results"] if group not in tasks}
    return tasks | groups


def _result(found: Any, task: str) -> TaskResult:
    """A task with several filters logs each item once for each of them."""
    kinds: dict[str, list[Any]] = {}
    for sample in sorted(found["samples"][task], key=lambda sample: sample["doc_id"]):
        kinds.setdefault(sample.get("filter", "none"), []).append(sample)
    samples = next(iter(kinds.values()), [])
    digest = hashlib.sha256("".join(str(sample["doc_hash"]) for sample in samples).encode()).hexdigest()
    made_with = {"task_version": found["versions"].get(task)}
    shots = int(found["n-shot"].get(task) or 0)
    return TaskResult(shots, len(samples), digest, _metrics(found["results"][task], kinds), made_with=made_with)


def _group(found: Any, group: str, tasks: dict[str, TaskResult]) -> TaskResult:
    """The harness's own aggregate over the tasks of a group."""
    members = [tasks[name] for name in found["group_subtasks"].get(group, []) if name in tasks]
    digest = hashlib.sha256("".join(task.items_sha256 for task in members).encode()).hexdigest()
    shots = max((task.shots for task in members), default=0)
    return TaskResult(shots, sum(task.items for task in members), digest, _metrics(found["results"][group], {}))


def _metrics(values: dict[str, Any], kinds: dict[str, list[Any]]) -> dict[str, Metric]:
    metrics = {}
    for key, value in values.items():
        name, _, kind = key.partition(",")
        if not kind or name.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = values.get(f"{name}_stderr,{kind}")
        marks = [sample.get(name) for sample in kinds.get(kind, [])]
        each = None
        if marks and all(isinstance(mark, int | float) for mark in marks):
            whole = Metric.of([float(mark) for mark in marks])  # pyright: ignore
            # only a metric that is the mean of its marks can be compared item by item: a perplexity is not
            each = whole.each if math.isclose(whole.value, value, abs_tol=1e-9) else None
        label = name if kind == "none" else f"{name} ({kind})"
        metrics[label] = Metric(float(value), float(error) if isinstance(error, int | float) else None, each)
    return metrics


@contextmanager
def _task_manager(name: str, data: Path | None, shots: int | None = None) -> Iterator[Any]:
    """All tasks of the harness; or, from local files, its own task file with nothing but the data source replaced."""
    if data is None:
        yield all_tasks()
        return
    official = official_file(name)
    with tempfile.TemporaryDirectory() as folder:
        text = yaml.safe_dump(local_task(name, official, data, shots), sort_keys=False)
        (Path(folder) / f"{name}.yaml").write_text(text, encoding="utf-8")
        yield TaskManager(include_path=folder, include_defaults=False)


@cache
def official_file(name: str) -> Path:
    """The installed task file that defines a task."""
    root = Path(str(lm_eval.__file__)).parent / "tasks"
    named = re.compile(rf"^task:\s*[\"']?{re.escape(name)}[\"']?\s*$", re.MULTILINE)
    likely = sorted(root.rglob(f"{name}.yaml"))
    for path in likely + [p for p in sorted(root.rglob("*.yaml")) if p not in likely]:
        if named.search(path.read_text(encoding="utf-8", errors="replace")):
            return path
    raise GMTError(f"the harness has no single task {name!r}; from local files, groups are not read")


def local_task(name: str, official: Path, data: Path, shots: int | None = None) -> dict[str, Any]:
    """The official task, its data source replaced; what it is scored on or draws examples from must be there."""
    source, files = _source(official), task_files(name, data)
    task: dict[str, Any] = {"include": str(official), "task": name, "dataset_path": "json", "dataset_name": None}
    task["dataset_kwargs"] = {"data_files": {split: str(path) for split, path in files.items()}}
    scored = source.get("test_split") or source.get("validation_split")
    if scored not in files:
        raise DataError(f"{name} is scored on its {scored} split, which {data} lacks: {name}_{scored}.jsonl")
    drawn = source.get("fewshot_split") or source.get("training_split")
    if (source.get("num_fewshot") if shots is None else shots) and drawn not in files:
        raise DataError(f"the examples before each item of {name} come from its {drawn} split, which {data} lacks")
    for key in ("training_split", "validation_split", "test_split"):
        if source.get(key) is not None and source[key] not in files:
            task[key] = None
    return task


def task_files(name: str, data: Path) -> dict[str, Path]:
    return local_files(name, _source(official_file(name)).get("dataset_name"), data)


def _source(path: Path) -> dict[str, Any]:
    """Where a task file says its data is, looked up through the files it includes."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: str(node.value))
    tree = yaml.load(path.read_text(encoding="utf-8"), Loader)
    above: dict[str, Any] = {}
    includes = tree.get("include", [])
    for name in [includes] if isinstance(includes, str) else includes:
        above |= _source(path.parent / name)
    return above | tree


def local_files(name: str, subset: str | None, data: Path) -> dict[str, Path]:
    """TASK_SPLIT.jsonl, or SUBSET_SPLIT.jsonl where the data has a name of its own; every line is looked at."""
    files = {}
    for split in SPLITS:
        for stem in filter(None, (name, subset)):
            path = data / f"{stem}_{split}.jsonl"
            if path.is_file():
                files.setdefault(split, path.resolve())
    if not files:
        names = " or ".join(f"{stem}_test.jsonl" for stem in filter(None, (name, subset)))
        raise DataError(f"{data} has no file for {name}: {names}, or the same with validation or train")
    for path in files.values():
        _check_lines(path)
    return files


def _check_lines(path: Path) -> None:
    count = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                count += 1
                try:
                    whole = isinstance(json.loads(line.decode()), dict)
                except ValueError:  # also what is not UTF-8
                    whole = False
                if not whole:
                    raise DataError(f"{path}:{number}: not a JSON object on a line of its own")
    if count == 0:
        raise DataError(f"{path} holds no items")
