"""A long run of a small model: memory, threads and descriptors stay what they are."""

import os
import threading
import time
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
import pytest
from support.attacks import SECONDS, attack
from support.toy import ToyData

from adaptive import Adagrad, TableConfig, TierConfig, TieredEmbeddingBag

pytestmark = attack

STEPS = 3000 if not SECONDS else 1_000_000
EVERY = 100  # steps between two looks


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


@pytest.mark.parametrize("host", ["memory", "files"])
def test_memory_threads_and_descriptors_are_flat(tmp_path: Path, host: str) -> None:
    tables = [
        TableConfig(name=name, num_embeddings=n, embedding_dim=4) for name, n in (("a", 40), ("b", 300), ("c", 7))
    ]
    tier = TierConfig(device_rows="60%", host="memory" if host == "memory" else f"mmap:{tmp_path}")
    batches = list(ToyData().train(32))
    seen: list[tuple[int, int, int]] = []
    with TieredEmbeddingBag(tables, tier, policy="lru", optimizer=Adagrad(lr=0.01)) as embeddings:
        until, steps = time.monotonic() + SECONDS, count(1)
        for planned in embeddings.look_ahead(islice(cycle(batches), STEPS), depth=2):
            embeddings.stack(planned).sum().backward()
            embeddings.step()
            step = next(steps)
            if step % EVERY == 0:
                descriptors = len(os.listdir("/proc/self/fd"))
                seen.append((resident_kib(), threading.active_count(), descriptors))
                if step >= 3000 and time.monotonic() > until:
                    break
    later = np.array(seen[len(seen) // 3 : -1])  # at the last step the look-ahead has ended
    print(f"soak: {step:,} steps, KiB, threads, descriptors at first {seen[0]}, at last {seen[-1]}")
    slope = np.polyfit(np.arange(len(later)), later[:, 0], 1)[0] * len(later)
    assert slope < 4096, f"memory grew by {slope:.0f} KiB over {step:,} steps"
    assert len(set(later[:, 1])) == 1 and np.ptp(later[:, 2]) <= 2
