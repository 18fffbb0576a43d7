"""The explorer with a base-size model on a CPU, in a real Chromium.

    python benchmarks/explore_cpu.py MODEL [CHROMIUM]

Loads the page, reads a text of about 100 tokens, clicks tokens and slots, silences a slot, and prints how long each
takes until its view is there: at most 3 s for the first view, 0.3 s for a click without a model run (median of five),
3 s for an edit. Exits with 1 where one does not hold.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable

from playwright.sync_api import sync_playwright

from gmt.explorer.run import serve

TEXT = "The ferry was late again, and the old woman on the pier did not seem to mind. " * 6
PORT = 8699


def main() -> None:
    ready = threading.Event()
    server = threading.Thread(
        target=serve, args=(sys.argv[1],), kwargs={"port": PORT, "tell": lambda _: ready.set()}, daemon=True
    )
    server.start()
    ready.wait(120)
    chromium = sys.argv[2] if len(sys.argv) > 2 else "/usr/bin/chromium"
    found: dict[str, tuple[float, float]] = {}
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]).new_page()
        page.goto(f"http://127.0.0.1:{PORT}/")
        page.wait_for_selector("#examples button")

        def settled() -> None:
            page.wait_for_selector("#busy:empty", state="attached")
            page.wait_for_timeout(400)

        def timed(act: Callable[[], object], seen: str) -> float:
            began = time.perf_counter()
            act()
            page.wait_for_selector(seen)
            return time.perf_counter() - began

        page.fill("#text", TEXT)
        found["first view"] = timed(lambda: page.click("#read"), "#next .bars path"), 3.0
        settled()
        tokens = []
        for place in (3, 9, 15, 21, 27):
            tokens.append(timed(lambda p=place: page.click(f"#t{p}"), f"#token-facts:has-text('Token {place}')"))
            settled()
        found["a token"] = statistics.median(tokens), 0.3
        slots = []
        for slot in (5, 17, 40, 77, 101):
            page.fill("#slot-number", str(slot))
            slots.append(
                timed(lambda: page.press("#slot-number", "Enter"), f"#slot-card h3:has-text('Slot {slot} of')")
            )
            settled()
        found["a slot"] = statistics.median(slots), 0.3
        found["an edit"] = timed(lambda: page.click("#silence-target"), "#before .bars path"), 3.0
        settled()
    for name, (seconds, most) in found.items():
        print(f"{name:<12}{seconds:>7.2f} s   (at most {most} s)")
    sys.exit(0 if all(seconds <= most for seconds, most in found.values()) else 1)


if __name__ == "__main__":
    main()
