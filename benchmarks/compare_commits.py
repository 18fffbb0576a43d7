"""Compare the numbers of v7 between two commits, bit for bit, on one machine.

    python benchmarks/compare_commits.py BEFORE [AFTER]      # AFTER: the working tree by default

Runs tests/v7_values.py (logits, losses, terms, writes, gradients, state after three steps; `tiny` and `gmt-v7-base`,
plain PyTorch, one thread) with the source of each commit. Exits 1 if any bit differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PRESETS = ("tiny", "gmt-v7-base")


def values(source: Path, preset: str) -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "v7_values.py"), preset]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", help="a commit; the working tree by default")
    args = parser.parse_args()
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        sources = [checkout(commit, Path(folder)) for commit in (args.before, args.after)]
        for preset in PRESETS:
            before, after = (values(source, preset) for source in sources)
            names = [name for name in before | after if before.get(name) != after.get(name)]
            print(f"{preset}: {len(before)} tensors, {len(names)} differ")
            for name in names[:10]:
                print(f"  {name}: {before.get(name)} -> {after.get(name)}")
            different += len(names)
    return int(different > 0)


def checkout(commit: str | None, folder: Path) -> Path:
    """The src folder of a commit, without touching the working tree."""
    if commit is None:
        return ROOT / "src"
    target = folder / commit.replace("/", "-")
    target.mkdir(exist_ok=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target / "src"


if __name__ == "__main__":
    sys.exit(main())
