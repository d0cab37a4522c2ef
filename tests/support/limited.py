"""Run as a program, by `test_limited_memory.py`: commands on a table that is three times as large as the memory left.

What libraries take, and what is compiled, is taken first, by the same commands on a small table. Then the memory that
no file backs is limited: what is taken from then on is for the large one. Prints a line of JSON for each command.
"""

import io
import json
import resource
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

from adaptive.cli.app import main

SMALL, LARGE, WIDTH = 2000, 60_000, 256
TABLE_BYTES = LARGE * WIDTH * 4 * 2  # values, and as much state
SHARE = 3
FIXED = ["optimizer.name=adagrad", f"model.embedding_dim={WIDTH}", "model.bottom_mlp=8-256", "model.top_mlp=8-1"]
FIXED += ["depth=1", "tier.device_rows=3000", "eval_batch_size=1024", "tensorboard=false", "data.eval_data=small.csv"]


def data_bytes() -> int:
    """Bytes of memory that this process has taken and no file backs, touched or not: what RLIMIT_DATA limits."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    return int(line.split()[1]) * 1024


def write(name: str, num_rows: int) -> None:
    """Each row once, in random order."""
    ids = np.random.default_rng(0).permutation(num_rows)
    Path(f"{name}.csv").write_text("click,price,id\n" + "".join(f"{row % 2},1.5,{row}\n" for row in ids))
    Path(f"{name}.toml").write_text(
        '[label]\ncolumn = "click"\n[[dense]]\ncolumns = ["price"]\n'
        f'[[categorical]]\ncolumns = ["id"]\nkind = "int"\nnum_embeddings = {num_rows}\n'
    )


def call(*words: str) -> int:
    """The exit code of a command; what it gives is printed if that is 0."""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            main([*words, "--json"])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    if code == 0:
        found = json.loads(out.getvalue())
        print(json.dumps({"command": words[0], "run": words[1], **found}), flush=True)
    return code


def all_commands(name: str) -> None:
    sets = [word for one in [*FIXED, "tier.host=mmap:rows"] for word in ("--set", one)]
    train = ["--data", f"csv:{name}.csv", "--schema", f"{name}.toml", "--batch-size", "1024", "--out", f"run-{name}"]
    assert call("run", *train, *sets) == 0
    assert call("eval", f"run-{name}") == 0
    assert call("predict", f"run-{name}", "--data", "small.csv", "--out", f"{name}.npy") == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != hard:  # the check of an export maps its tables, which counts as data
        resource.setrlimit(resource.RLIMIT_DATA, (soft + TABLE_BYTES // 2, hard))
    assert call("export", f"run-{name}", "--out", f"{name}-served") == 0
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


if __name__ == "__main__":
    write("small", SMALL)
    write("large", LARGE)
    all_commands("small")
    limit = data_bytes() + TABLE_BYTES // SHARE
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    all_commands("large")
    assert call("eval", "run-large", "--set", "tier.host=memory") == 2, "the limit limits nothing"  # a ConfigError
    sys.exit(0)
