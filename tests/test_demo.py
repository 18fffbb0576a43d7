"""`gmt demo` from end to end, as short as it goes, and once more over what it left."""

import subprocess
import sys


def test_the_demo_ends_with_a_table_and_can_be_run_again(tmp_path):
    command = [sys.executable, "-m", "gmt", "demo", "--out", str(tmp_path / "demo"), "--minutes", "0.05"]
    for more in ([], ["--no-report"]):  # a report once
        done = subprocess.run([*command, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "memory       598,280" in done.stdout and "dense        598,272" in done.stdout
        assert (tmp_path / "demo" / "curves.png").exists()
        assert ("What the memory does" in done.stdout) == (not more)
    assert (tmp_path / "demo" / "report" / "index.html").exists()
