"""`examples/ngram_memory.py` on a small configuration: bits, hashing, causality, tokens."""

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
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


def test_memory_trains_and_the_rest_of_the_gpt_starts_equal(example: Any, data: list[Any]) -> None:
    memory = example.make_memory(ROWS, TierConfig(device_rows="10%"))
    plain, trainer = example.Gpt(memory.device), example.Gpt(memory.device, memory)
    initial = trainer.state_dict()
    assert all(torch.equal(weight, initial[name]) for name, weight in plain.state_dict().items())
    before = memory.rows.table_weights("ngrams").copy()
    assert len(list(trainer.learn(data))) == STEPS
    changed = (memory.rows.table_weights("ngrams") != before).any(axis=1)
    looked_up = np.zeros(ROWS, np.bool_)
    looked_up[np.concatenate([batch.ids for batch in data])] = True
    assert (changed <= looked_up).all() and changed.sum() > 0.9 * looked_up.sum()


def test_rows_depend_on_the_last_tokens_only(example: Any) -> None:
    """A twin that hashes each n-gram alone, with Python's integers."""
    tokens = np.random.default_rng(0).integers(0, 512, (3, 20))
    for order in (2, 3):
        rows = example.ngram_rows(tokens, order, 1_000_003)
        for sequence, position in np.ndindex(tokens.shape):
            mixed = order
            for back in range(order):
                earlier = int(tokens[sequence, position - back]) if position >= back else 0
                mixed = (mixed ^ earlier) * 0x9E3779B97F4A7C15 % 2**64
                mixed ^= mixed >> 32
            assert rows[sequence, position] == mixed % 1_000_003
    pairs = np.stack(np.meshgrid(np.arange(300), np.arange(300)), axis=-1).reshape(-1, 2)
    rows = example.ngram_rows(pairs, 2, 10_000_000)[:, 1]
    collisions = len(pairs) - len(np.unique(rows))
    expected = len(pairs) ** 2 / (2 * 10_000_000)  # of random rows, with a deviation of its root
    assert abs(collisions - expected) < 5 * math.sqrt(expected)


def test_losses_do_not_depend_on_later_tokens(example: Any, data: list[Any]) -> None:
    memory = example.make_memory(ROWS, TierConfig(device_rows="10%"))
    trainer = example.Gpt(memory.device, memory)
    assert len(list(trainer.learn(data))) == STEPS
    tokens = np.random.default_rng(0).integers(0, 512, (2, 33))
    other = tokens.copy()
    other[:, 20] = (other[:, 20] + 1) % 512
    with torch.no_grad():
        losses, changed = (trainer(memory.read(example.to_batch(array, ROWS))) for array in (tokens, other))
    assert torch.equal(losses[:, :19], changed[:, :19])
    assert (losses[:, 20:] != changed[:, 20:]).any(dim=1).all()


def test_tokens_spell_the_sources(example: Any) -> None:
    sources = [*example.read_sources(limit=5), "λ = 'ä'\r\n\tif x:\n        pass"]
    files = example.tokenize(sources)
    words = re.findall(r"\w+| +|\n\s*|[^\w\s]+|\s", "".join(sources))
    assert "".join(words) == "".join(sources)
    for file, source in zip(files, sources, strict=True):
        assert file.min() >= 0 and file.max() < 512 and len(file) <= len(source.encode())
    assert any(file.max() >= 256 for file in files)


def test_windows_have_every_token_as_a_target_once_an_epoch(example: Any) -> None:
    text = np.arange(4 * 32 * 5 + 1)
    (first, *others) = example.windows([text[:100], text[100:]], 5)
    targets = np.concatenate([first[:, 1:], *(window[:, 1:] for window in others)])
    assert sorted(targets.ravel()) == list(range(1, len(text)))


@pytest.mark.nightly
def test_example_prints_losses_and_times(example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example.main(rows=200_000, host=f"mmap:{tmp_path}", steps=200)
    text = capsys.readouterr().out
    assert "step 200: loss" in text
    without, with_memory = (float(loss) for loss in re.findall(r"held-out files, .*: loss (\d+\.\d+)", text))
    assert with_memory < without
    assert re.search(r"time of a step with memory: \d\.\d{3} of the time without \(median of turns", text)
