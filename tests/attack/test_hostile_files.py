"""Links, devices, depth and size: refused at once, by name; nothing is written through a link."""

from pathlib import Path

import pytest
from support.attacks import attack, copied, told
from support.interrupted import small_world

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.errors import CheckpointError, ConfigError, OutputError
from adaptive.training.runs import evaluate_run, resume_run

pytestmark = attack


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard", "vocabulary", "rejects.jsonl", "run.json", "weights"])
def test_a_resumed_run_writes_through_no_link(cut_run: Path, tmp_path: Path, name: str) -> None:
    folder, outside = copied(cut_run, tmp_path / "run"), tmp_path / "outside"
    is_folder = "." not in name
    if is_folder:
        outside.mkdir()
    else:
        outside.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"")
    before = outside.stat().st_mtime_ns, outside.read_bytes() if not is_folder else b""
    if (folder / name).is_dir():
        for inner in (folder / name).iterdir():
            inner.rename(outside / inner.name)
        (folder / name).rmdir()
        before = outside.stat().st_mtime_ns, b""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with small_world(num_train=256), pytest.raises(CheckpointError, match=f"{name}: expected .*got.* a link"):
        resume_run(folder)
    assert before == (outside.stat().st_mtime_ns, outside.read_bytes() if not is_folder else b"")


def test_a_vocabulary_that_cannot_be_written_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("y,c\n1,a\n0,b\n")
    (tmp_path / "s.toml").write_text('label = {column = "y"}\ncategorical = [{columns = ["c"], vocabulary = true}]\n')
    for place in ("/proc/self", "/dev/zero"):
        options = DataOptions(schema_path=tmp_path / "s.toml", vocabulary_path=Path(place))
        with pytest.raises((OutputError, ConfigError), match=place):
            open_dataset(f"csv:{tmp_path / 'data.csv'}", options)


def test_a_run_without_its_vocabulary_is_refused(tmp_path: Path) -> None:
    from adaptive.config import TrainConfig
    from adaptive.training.runs import train_run

    lines = [f"{n % 2},a{n % 7}" for n in range(64)]
    (tmp_path / "data.csv").write_text("y,c\n" + "\n".join(lines) + "\n")
    (tmp_path / "s.toml").write_text('label = {column = "y"}\ncategorical = [{columns = ["c"], vocabulary = true}]\n')
    given = {"data": f"csv:{tmp_path / 'data.csv'}", "data_options": {"schema_path": str(tmp_path / "s.toml")}}
    more = {"batch_size": 16, "model_options": {"embedding_dim": 4, "interaction": "cat"}, "out": str(tmp_path / "run")}
    train_run(TrainConfig.model_validate({**given, **more}))
    for path in (tmp_path / "run/vocabulary").iterdir():
        path.unlink()
    (tmp_path / "run/vocabulary").rmdir()
    with pytest.raises(CheckpointError, match=r"expected the vocabularies of c in .*vocabulary, got"):
        resume_run(tmp_path / "run", epochs=2)
    assert told(lambda: evaluate_run(tmp_path / "run"), codes=(3, 4), names="vocabulary")
    assert not (tmp_path / "run/vocabulary").exists()
