"""Files of a stranger: wrong values, links, pipes, devices, depth and size. Each is refused at once, by name, with a
code for users; nothing is written outside the run directory, and no memory is taken that a file only claims to need."""

import hashlib
import io
import json
import math
import pickle
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from support.attacks import attack, copied, told
from support.hostile import NOT_PLAIN, VALUES, at_once, is_json, paths_in, put
from support.interrupted import small_world
from support.manifests import signed_whatever

from adaptive.data.data_options import DataOptions
from adaptive.data.rows.data_files import find_files
from adaptive.data.rows.vocabularies import Vocabulary, load_vocabularies, load_vocabulary, save_vocabularies
from adaptive.data.text.delimited import open_csv
from adaptive.data.text.schema import load_schema
from adaptive.errors import CheckpointError, ConfigError, InputError, OutputError
from adaptive.storage.run_directory import read_record
from adaptive.storage.untrusted import DIGEST, signed_json
from adaptive.training.runs import evaluate_run, resume_run
from adaptive.training.settings import load_settings
from adaptive.training.telemetry.jsonl import read_metrics

pytestmark = attack


@pytest.mark.parametrize("kind", NOT_PLAIN)
@pytest.mark.parametrize(
    "name", ["run.json", "metrics.jsonl", "checkpoint-4/manifest.json", "checkpoint-4/shard-0-0.npy", "lock"]
)
def test_what_is_no_plain_file_of_a_run(cut_run: Path, tmp_path: Path, name: str, kind: str) -> None:
    folder = copied(cut_run, tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    NOT_PLAIN[kind](folder / name)
    with small_world(num_train=256), at_once():
        message = told(lambda: resume_run(folder), codes=(4, 6), names=name.partition("/")[2] or name)
    if name != "lock" or kind in ("pipe", "folder", "zero", "link", "dangling"):
        assert message is not None


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_what_is_no_plain_file_of_settings(tmp_path: Path, kind: str) -> None:
    for suffix in ("json", "toml"):
        path = tmp_path / f"settings.{suffix}"
        NOT_PLAIN[kind](path)
        for read in (lambda path=path: load_settings(file=path), lambda path=path: load_schema(path)):
            with at_once(), pytest.raises(ConfigError, match=f"settings.{suffix}"):
                read()
    with at_once():
        data = tmp_path / "data.csv"
        NOT_PLAIN[kind](data)
        if kind in ("pipe", "folder", "zero"):
            with pytest.raises(InputError, match=r"data\.csv"):
                find_files(str(data))


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


def arrays() -> dict[str, bytes]:
    """Files in place of a vector of ids, with and without objects."""
    ids = np.arange(5)
    found = {
        "objects": ids.astype(object), "matrix": ids.reshape(1, 5), "scalar": np.array(3), "text": ids.astype("U4"),
        "big-endian": ids.astype(">i8"), "fortran": np.asfortranarray(np.ones((5, 2), np.int64)),
        "floats": ids.astype(float), "longer": np.arange(6),
    }  # fmt: skip
    made = {name: io.BytesIO() for name in found}
    for name, array in found.items():
        np.save(made[name], array, allow_pickle=True)
    content = {name: file.getvalue() for name, file in made.items()}
    out = io.BytesIO()
    np.savez(out, ids)
    plain = io.BytesIO()
    np.save(plain, ids)
    content["npz"] = out.getvalue()
    content["10^15 values"] = plain.getvalue().replace(b"(5,)", b"(1000000000000000,)").replace(b" " * 15, b"", 1)
    content["pickle"] = pickle.dumps(ids)
    content["no literal"] = plain.getvalue().replace(b"'shape'", b"__im__'")
    content["empty"] = b""
    return content


@pytest.mark.parametrize("kind", arrays())
def test_vocabulary_arrays_that_are_none(tmp_path: Path, kind: str) -> None:
    save_vocabularies(tmp_path, {"user": Vocabulary(np.arange(5), 1)})
    (tmp_path / "0000.npy").write_bytes(arrays()[kind])
    index = json.loads((tmp_path / "vocabulary.json").read_text())
    index["tables"]["user"]["sha256"] = hashlib.sha256(arrays()[kind]).hexdigest()
    del index[DIGEST]
    (tmp_path / "vocabulary.json").write_bytes(signed_json(index))
    with at_once(), pytest.raises(ConfigError, match=r"0000\.npy: expected"):
        load_vocabularies(tmp_path, {"user": 1})


def test_every_value_of_a_vocabularys_index(tmp_path: Path) -> None:
    save_vocabularies(tmp_path, {"user": Vocabulary(np.arange(5), 1)})
    content = json.loads((tmp_path / "vocabulary.json").read_text())
    del content[DIGEST]
    for place in paths_in(content):
        for value in [*filter(is_json, VALUES), math.inf, -math.inf]:
            changed = json.loads(json.dumps(content))
            put(changed, place, value)
            (tmp_path / "vocabulary.json").write_bytes(signed_whatever(changed))
            for read in (lambda: load_vocabularies(tmp_path, {"user": 1}), lambda: load_vocabulary(tmp_path, "user")):
                with at_once():
                    told(read, codes=(2,), names=str(tmp_path))
    for kind in NOT_PLAIN.values():
        (tmp_path / "vocabulary.json").unlink()
        kind(tmp_path / "vocabulary.json")
        with at_once(), pytest.raises(ConfigError, match=r"vocabulary\.json"):
            load_vocabularies(tmp_path, {"user": 1})
        if (tmp_path / "vocabulary.json").is_dir():
            (tmp_path / "vocabulary.json").rmdir()
            (tmp_path / "vocabulary.json").touch()


def test_a_vocabulary_that_cannot_be_written_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("y,c\n1,a\n0,b\n")
    (tmp_path / "s.toml").write_text('label = {column = "y"}\ncategorical = [{columns = ["c"], vocabulary = true}]\n')
    for place in ("/proc/self", "/dev/zero"):
        options = DataOptions(schema_path=tmp_path / "s.toml", vocabulary_path=Path(place))
        with pytest.raises((OutputError, ConfigError), match=place):
            open_csv(str(tmp_path / "data.csv"), options, None)


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


BIG: Final = {
    "batch_size": 10**18, "eval_batch_size": 2**70, "steps": 2**70, "skip.interval": 10**18, "skip.min_accesses": 2**70,
    "model.top_mlp": [10**9, 1], "model.bottom_mlp": [4] * 5000, "tier.policy_timeout_s": 1e300,
    "data": "csv:a\0b", "out": "a\0b", "data.schema_path": "a\0b", "tier.host": "mmap:a\0b",
    "tier.device_rows": "\N{ARABIC-INDIC DIGIT THREE}%", "epochs": 2**70, "policy": "lru\0",
}  # fmt: skip


@pytest.mark.parametrize("key", BIG)
def test_settings_that_nobody_means_are_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps({key: BIG[key]}))
    with at_once(), pytest.raises((ConfigError, ValueError), match=key.rpartition(".")[2].replace("_", ".")):
        load_settings(file=tmp_path / "a.json")


@pytest.mark.parametrize("seconds", [1e-300, 0.001, -1.0, 1e300])
def test_a_time_limit_that_nobody_could_keep_blames_no_policy(seconds: float) -> None:
    with pytest.raises(ConfigError, match="policy_timeout_s"):
        load_settings(sets=[f"tier.policy_timeout_s={seconds}"])
    assert load_settings(sets=["tier.policy_timeout_s=0"])[0].tier.policy_timeout_s == 0


def test_a_header_of_300_000_columns(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("y," + ",".join(f"c{n}" for n in range(300_000)) + "\n1\n")
    (tmp_path / "s.toml").write_text('label = {column = "y"}\ncategorical = [{columns = ["c*"]}]\n')
    with at_once(), pytest.raises(ConfigError, match=r"of at most 10,000 columns, got 1[0-9]{2},[0-9]{3}"):
        open_csv(str(tmp_path / "data.csv"), DataOptions(schema_path=tmp_path / "s.toml"), None)


@pytest.mark.parametrize("text", ["9" * 1_000_000, "-" + "9" * 1_000_000, "1e999", "0x" + "f" * 1_000_000])
def test_a_number_of_a_million_digits_in_a_schema(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.toml").write_text(f'[[categorical]]\ncolumns = ["c"]\nkind = "int"\nnum_embeddings = {text}\n')
    with at_once(), pytest.raises(ConfigError, match=r"s\.toml|num_embeddings") as caught:
        load_schema(tmp_path / "s.toml")
    assert len(str(caught.value)) < 2000


UNREADABLE: Final = {
    "zero": "/dev/zero",
    "memory": "/proc/self/mem",
    "long": "/tmp/" + "x" * 300,
    "longer": "/tmp/" + "x/" * 3000,
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_the_system_refuses_is_told_with_its_name(kind: str) -> None:
    path = Path(UNREADABLE[kind])
    for read in (
        lambda: load_settings(file=path),
        lambda: load_schema(path),
        lambda: load_vocabulary(path, "user"),
        lambda: open_csv(str(path), DataOptions(schema_path=path), None),
        lambda: resume_run(path),
    ):
        with at_once():
            message = told(read, codes=(2, 3, 4, 6), names=str(path)[:40])
        assert message is not None


def test_a_schema_of_2_to_the_40_rows(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[[categorical]]\ncolumns = ["c"]\nkind = "int"\nnum_embeddings = 1099511627776\n')
    with pytest.raises(ConfigError, match=r"num_embeddings") as caught:
        load_schema(tmp_path / "s.toml")
    assert "pydantic" not in str(caught.value)


def test_a_step_in_metrics_that_is_text(cut_run: Path, tmp_path: Path) -> None:
    lines = (cut_run / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    last = json.loads(lines[-1])
    for name in ("step", "samples", "loss", "tables", "kind", "time_ms"):
        for value in filter(is_json, VALUES):
            (tmp_path / "metrics.jsonl").write_bytes(
                b"\n".join([lines[0], json.dumps({**last, name: value}).encode(), b""])
            )
            told(lambda: read_metrics(tmp_path / "metrics.jsonl"), codes=(3,), names="metrics.jsonl:2")


def test_a_record_that_is_changed_by_hand_is_told(cut_run: Path, tmp_path: Path) -> None:
    folder = copied(cut_run, tmp_path / "run")
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"batch_size": 32', '"batch_size": 33'))
    for read in (lambda: read_record(folder), lambda: load_settings(file=folder / "run.json")):
        assert told(read, codes=(2, 4), names="run.json")
