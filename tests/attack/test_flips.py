"""Every array is covered: one that is flipped, cut, missing or swapped is an error by name, or changes no number.

So is JSON that is cut or missing.
"""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attacks import Campaign, attack, copied, stored_files, told
from support.interrupted import interrupted
from support.toy_runs import in_model

from adaptive.config import TrainConfig
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.runs import evaluate_run, resume_run, train_run

HARMLESS = ("rejects.jsonl", "events.out.tfevents")  # reports that nothing reads
SCHEMA = 'label = { column = "y" }\ncategorical = [{ columns = ["c", "d"], vocabulary = true }]\n'

pytestmark = attack
Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run with a vocabulary, and one like it that was killed behind its second checkpoint of two."""
    folder = tmp_path_factory.mktemp("flips")
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.6, (480, 2)) % 40
    lines = [f"{int(c % 3 == 0)},a{c},b{d}" for c, d in ids]
    (folder / "data.csv").write_text("y,c,d\n" + "\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    given = {
        "data": f"csv:{folder / 'data.csv'}",
        "data_options": {"schema_path": str(folder / "schema.toml"), "holdout": 0.2},
        "model_options": {"embedding_dim": 4},
        "batch_size": 32,
        "log_every": 2,
        "save_every": 4,
        "keep_checkpoints": 2,
        "tier": {"device_rows": "100%"},
    }
    train_run(TrainConfig.model_validate({**given, "out": str(folder / "whole")}))
    with pytest.MonkeyPatch.context() as patch:
        with interrupted(patch, "kill", 11):
            train_run(TrainConfig.model_validate({**given, "out": str(folder / "cut")}))
        in_model(patch, lambda model, dense, pooled: None)
    assert sorted(p.name for p in (folder / "cut").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-8"]
    return folder / "whole", folder / "cut"


def evaluated(run: Path) -> Numbers:
    found = evaluate_run(run)
    return {name: value for name, value in found.items() if name != "run_dir"}


def resumed(run: Path) -> Numbers:
    found = resume_run(run)
    names = ("steps", "samples", "auc", "log_loss", "evaluations")
    weights = load_checkpoint(run / "weights")
    arrays: dict[str, NDArray[Any]] = {**weights.rows, **{k: v.numpy() for k, v in weights.dense.items()}}
    return {**{name: found[name] for name in names}, **{name: a.tobytes() for name, a in arrays.items()}}


def flipped(path: Path, rng: np.random.Generator) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "empty"
    at = int(rng.integers(len(data)))
    data[at] ^= int(rng.integers(1, 256))
    path.write_bytes(data)
    return f"byte {at}"


def cut(path: Path, rng: np.random.Generator) -> str:
    size = int(rng.integers(path.stat().st_size + 1))
    with open(path, "r+b") as file:
        file.truncate(size)
    return f"at {size}"


def missing(path: Path, rng: np.random.Generator) -> str:
    path.unlink()
    return "gone"


def swapped(path: Path, rng: np.random.Generator) -> str:
    others = [one for one in stored_files(path.parent) if one != path and one.suffix == path.suffix]
    if not others:
        return missing(path, rng)
    other = others[int(rng.integers(len(others)))]
    content = path.read_bytes()
    shutil.copyfile(other, path)
    other.write_bytes(content)
    return f"with {other.name}"


DAMAGES: list[Callable[[Path, np.random.Generator], str]] = [flipped, flipped, flipped, cut, missing, swapped]


def kind_of(path: Path) -> str:
    """A word for counting: the folder of an array, or the beginning of a file's name."""
    return path.parent.name if path.suffix == ".npy" else path.name.partition(".tfevents")[0]


def damage_each(
    name: str, least: int, run: Path, to: Path, reading: Callable[[Path], Numbers], told_of: Callable[[Path], bool]
) -> None:
    expected, campaign = reading(copied(run, to)), Campaign(name, least)
    files = [path.relative_to(run) for path in stored_files(run)]
    for _, rng in campaign.tries():
        copied(run, to)
        path = to / files[int(rng.integers(len(files)))]
        damage = DAMAGES[int(rng.integers(3 if path.suffix == ".json" else 0, len(DAMAGES)))]
        before = path.read_bytes()
        what = f"{damage.__name__} {path.relative_to(to)} {damage(path, rng)}"
        found: list[Numbers] = []
        message = told(lambda: found.append(reading(to)), codes=(2, 3, 4))  # noqa: B023 (called at once)
        if message is not None:
            assert str(to) in message and told_of(path), f"{what}: {message}"
            campaign.came("told by name")
            continue
        assert found[0] == expected, f"{what}: the numbers differ without an error"
        is_same = path.exists() and path.read_bytes() == before
        campaign.came("no damage" if is_same else f"harmless in {kind_of(path)}")
    assert campaign.outcomes.get("told by name") or least < 30


def test_a_damaged_file_of_a_finished_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    damage_each("evaluated after damage", 60, runs[0], tmp_path / "run", evaluated, lambda path: True)


def test_a_damaged_file_of_a_killed_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    def not_harmless(path: Path) -> bool:
        return not path.name.startswith(HARMLESS)

    damage_each("resumed after damage", 20, runs[1], tmp_path / "run", resumed, not_harmless)


def test_a_damaged_checkpoint_falls_back_to_the_older_one(runs: tuple[Path, Path], tmp_path: Path) -> None:
    expected = resumed(copied(runs[1], tmp_path / "whole"))
    run = copied(runs[1], tmp_path / "run")
    file = next((run / "checkpoint-8").glob("rows-*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    stream = io.StringIO()
    resume_run(copied(run, tmp_path / "told"), stream=stream)
    assert "checkpoint-8 is damaged, using an older checkpoint: " in stream.getvalue()
    assert f"{file.name}: expected sha256" in stream.getvalue() and "resumed after step 4" in stream.getvalue()
    assert resumed(run) == expected
    assert not list(run.glob("checkpoint-*"))
    none = copied(runs[1], tmp_path / "none")
    for number in (4, 8):
        (none / f"checkpoint-{number}/manifest.json").write_text("{")
    assert told(lambda: resume_run(none), codes=(4,), names="checkpoint-8/manifest.json")
