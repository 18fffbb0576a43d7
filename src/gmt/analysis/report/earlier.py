"""Files of a report of version 0.1.0, which kept no list of its files."""

import re
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open

FOOTER = re.compile(r"<footer>Made by gmt [^<]*</footer>\s*</body>\s*</html>\s*$")
LINK = re.compile(r'href="((?:figures|tables)/[^"/]+)"')


def earlier_report(out: Path) -> Callable[[str], bool]:
    """Return a function that says whether the file with a given name belongs to a report in `out`.

    The page is recognised by its last lines, figures and tables by the links of the page, a trace by its header.
    """
    try:
        page = (out / "index.html").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return lambda name: False
    if not FOOTER.search(page):
        return lambda name: False
    files = {"index.html", *LINK.findall(page)}
    return lambda name: name in files or (name.startswith("traces/") and _is_trace(out / name))


def _is_trace(path: Path) -> bool:
    try:
        with safe_open(path, "numpy") as file:
            return "gmt_trace" in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False
