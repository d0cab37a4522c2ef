"""`examples/ngram_memory.py` on a small configuration: bits, hashing, causality, tokens."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from adaptive import Counter, TierConfig

FILE = Path(__file__).parent.parent / "examples/ngram_memory.py"
ROWS, STEPS = 200_000, 24


@pytest.fixture(name="example", scope="module")
def example_fixture() -> Iterator[Any]:
    """The example as a module, with a GPT that trains in a second."""
    spec = importlib.util.spec_from_file_location("ngram_memory", FILE)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ngram_memory", module)
        spec.loader.exec_module(module)
        for name, value in {"BATCH": 4, "CONTEXT": 32, "ROW": 8, "WIDTH": 16, "LAYERS": 2, "VOCABULARY": 512}.items():
            patch.setattr(module, name, value)
        yield module


@pytest.fixture(scope="module")
def data(example: Any) -> list[Any]:
    files = example.tokenize(example.read_sources(limit=20))
    return [example.to_batch(tokens, ROWS) for tokens in example.windows(files, STEPS)]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def test_losses_and_rows_are_equal_at_any_placement_and_depth(example: Any, data: list[Any], dtype: str) -> None:
    """1% and 100% of the rows on the device, nothing or eight batches ahead: the same bits, though rows move."""
    results, moved = [], []
    for device_rows, depth in (("1%", 0), ("1%", 8), ("100%", 0), ("100%", 8)):
        memory = example.make_memory(ROWS, TierConfig(device_rows=device_rows), dtype)
        trainer = example.Gpt(memory.device, memory, depth)
        losses = list(trainer.learn(data))
        moved.append(int(memory.statistics.take().counts[:, Counter.WRITTEN_BACK].sum()))
        results.append((losses, trainer.evaluate(data[:4]), memory.rows.table_weights("ngrams").tobytes()))
    assert results[0] == results[1] == results[2] == results[3]
    assert moved[0] > 1000 and moved[1] > 1000 and moved[2:] == [0, 0]
    assert np.isfinite(results[0][0]).all()


@pytest.mark.nightly
def test_example_prints_losses_and_times(example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example.main(rows=200_000, host=f"mmap:{tmp_path}", steps=200)
    text = capsys.readouterr().out
    assert "step 200: loss" in text
    without, with_memory = (float(loss) for loss in re.findall(r"held-out files, .*: loss (\d+\.\d+)", text))
    assert with_memory < without
    assert re.search(r"time of a step with memory: \d\.\d{3} of the time without \(median of turns", text)
