"""What the books cost: bytes per host row and per device slot, and a table of a billion rows."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.engine.build import size_engine
from adaptive.embeddings.planning.skipping import HotSet
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.kernels.planning.books import SlotColumns
from adaptive.optim import SGD, Adam, RowOptimizer
from adaptive.plugins import make_policy, with_rule

HOST_ROW_BYTES, SLOT_BYTES = 8, 24


def array_bytes(thing: Any) -> int:
    """Bytes of the memory behind all arrays that an object holds, each block once."""
    blocks, values = {}, list(vars(thing).values())
    columns = [column for value in values if isinstance(value, SlotColumns) for column in value]
    for value in values + columns:
        if isinstance(value, np.ndarray):
            block = value.base if isinstance(value.base, np.ndarray) else value
            blocks[id(block)] = block.nbytes
    return sum(blocks.values())


# --- bytes per row and slot ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 5, 1000, 4096, 5000])
def test_the_hot_set_counts_all_its_bytes(capacity: int) -> None:
    """16 bytes an entry, and 4 a row of the group."""
    hot = HotSet(capacity, SkipConfig(min_accesses=1), 8192)  # whole pages
    assert array_bytes(hot) == hot.num_bytes == capacity * 16 + 8192 * 4


def test_the_report_of_memory_is_what_the_arrays_take() -> None:
    table = TableConfig(name="t", num_embeddings=10_000, embedding_dim=8)
    embeddings = TieredEmbeddingBag([table], TierConfig(device_rows="500", device="cpu"))
    memory = embeddings.statistics.memory()
    assert memory["bookkeeping"] <= 10_000 * HOST_ROW_BYTES + 500 * SLOT_BYTES
    (tiered,) = embeddings.runtime.pipeline.tiered_groups
    assert memory["bookkeeping"] == tiered.planner.tracker.records.nbytes + array_bytes(tiered.planner.slots)
    assert memory["host_weights"] == tiered.host.weights.nbytes == 10_000 * 32
    assert memory["device_weights"] == 500 * 32


# --- a billion rows --------------------------------------------------------------------------------------------------

BILLION = 10**9
TRAIN_A_BILLION_ROWS = f"""
import sys
import numpy as np
from adaptive import Batch, RowwiseAdagrad, TableConfig, TierConfig, TieredEmbeddingBag

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024

def train(num_rows, directory):
    random = np.random.default_rng(0)
    table = TableConfig(name="t", num_embeddings=num_rows, embedding_dim=16)
    tier = TierConfig(device_rows="40", host="mmap:" + directory, device="cpu")
    ids = [np.append(random.integers(0, num_rows, 15), num_rows - 1) for _ in range(8)]
    none, offsets, labels = np.zeros((16, 0), np.float32), np.arange(17), np.zeros(16, np.float32)
    with TieredEmbeddingBag([table], tier, optimizer=RowwiseAdagrad()) as embeddings:
        for planned in embeddings.look_ahead([Batch(none, i, offsets, labels) for i in ids], depth=1):
            embeddings(planned)["t"].square().sum().backward()
            embeddings.step()
        embeddings.rows.flush()
        disk = sum(tiered.host.disk_bytes for tiered in embeddings.runtime.pipeline.tiered_groups)
        return embeddings.statistics.memory(), embeddings.statistics.take().counts.sum(0), disk

train(10**5, sys.argv[1] + "/small")
before = resident()
memory, counts, disk = train({BILLION}, sys.argv[1])
print("megabytes", resident() - before, "disk", disk)
print("host_bytes", memory["host_weights"] + memory["host_state"])
print("lookups", counts[0], "written_back", counts[5])
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory through /proc")
def test_a_billion_rows_cost_what_is_touched(tmp_path: Path) -> None:
    """68 GB on paper: 10**9 rows of 64 bytes and 4 of state. Eight batches touch 121 rows."""
    run = subprocess.run(
        [sys.executable, "-c", TRAIN_A_BILLION_ROWS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    if "Cannot allocate memory" in run.stderr or "MemoryError" in run.stderr:
        pytest.skip("this system does not lend 16 GB of address space for records")
    assert run.returncode == 0, run.stderr
    told = {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", run.stdout)}
    assert told["host_bytes"] == BILLION * 68
    assert told["lookups"] == 8 * 16
    assert told["written_back"] > 50
    assert told["megabytes"] < 100
    assert 50 * 2 * 4096 <= told["disk"] < 4 * 2**20


@pytest.mark.parametrize(("policy", "rule"), [("lru", "off"), ("slipstream", None), ("lru", "defer")])
@pytest.mark.parametrize("optimizer", [SGD(), Adam()], ids=lambda one: type(one).__name__)
def test_an_outline_has_the_bytes_of_the_tables(policy: str, rule: str | None, optimizer: RowOptimizer) -> None:
    """What a dry run prints, of tables that it does not make."""
    tables = [
        TableConfig(name="a", num_embeddings=5120, embedding_dim=4),
        TableConfig(name="b", num_embeddings=512, embedding_dim=8),
    ]
    tier, chosen = TierConfig(device_rows="20%", device="cpu"), make_policy(policy)
    skip = with_rule(chosen, SkipConfig(rule=rule, hot_rows="30%"))
    made = TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer, skip=skip)
    sized = size_engine(tables, tier, chosen, optimizer, skip, 0)
    assert sized.memory() == {name: size for name, size in made.statistics.memory().items() if "buffers" not in name}
    assert (sized.num_rows, sized.device_rows) == (made.runtime.view.num_rows, made.runtime.view.device_rows)
    assert (sized.defers, sized.drops_updates) == (made.defers, made.drops_updates)


def test_tables_that_no_memory_holds_name_the_way_out() -> None:
    table = TableConfig(name="a", num_embeddings=2**40, embedding_dim=128)
    with pytest.raises(
        ConfigError, match=r"expected 524,288.0 GiB of memory for 1,099,511,627,776 rows .* GiB available.*mmap:DIR"
    ):
        TieredEmbeddingBag([table], optimizer=SGD())
