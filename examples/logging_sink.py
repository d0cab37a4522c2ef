"""Follow a run's metrics.jsonl and pass its numbers on, while it trains or afterwards.

Run: python examples/logging_sink.py runs/clicks     (prints; replace `log` with your tracker)
"""

import json
import sys
import time
from pathlib import Path


def follow(run, seconds=1.0):
    """Yield each record of a run as a dict, until the run has ended and all its records were read."""
    with open(run / "metrics.jsonl") as lines:
        while True:
            is_over = not (run / "lock").exists()  # asked before reading, so that nothing is missed
            yield from map(json.loads, lines)  # a line appears whole or not at all
            if is_over:
                return
            time.sleep(seconds)


def log(numbers, step):
    """Replace this: wandb's `run.log(numbers, step=step)`, or `mlflow.log_metrics(numbers, step=step)`."""
    print(step, {name: round(number, 4) for name, number in numbers.items()})


if __name__ == "__main__":
    for record in follow(Path(sys.argv[1])):
        if record["kind"] in ("interval", "eval"):  # other kinds: the run's settings, and where it was resumed
            numbers = {f"{record['kind']}/{name}": n for name, n in record.items() if isinstance(n, float)}
            log(numbers, record["step"])
