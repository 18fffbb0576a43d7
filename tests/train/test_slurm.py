"""The SLURM script of the guide, run on one machine with stand-ins for srun and scontrol."""

import os
import subprocess
import sys
from pathlib import Path

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "distributed.md").read_text(encoding="utf-8")


def test_a_dry_run_plans_for_all_processes(tmp_path):
    script = tmp_path / "train.sbatch"
    script.write_text(GUIDE.split("```bash\n")[1].split("```")[0])
    commands = tmp_path / "bin"
    commands.mkdir()
    torchrun = f'exec {sys.executable} -m torch.distributed.run "$@"'
    for name, body in {"srun": 'exec "$@"', "scontrol": "echo localhost", "torchrun": torchrun}.items():
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)
    job = {
        "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_ID": "7",
        "PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = ["bash", str(script), "tiny", "--plan"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **job}, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["processes", "2"] in lines and sum(line[:1] == ["processes"] for line in lines) == 1
