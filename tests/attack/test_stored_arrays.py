"""Every array of a checkpoint or an export with another dtype, shape or content: refused by name, or harmless."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.attacks import SECONDS, SEED, Campaign, attack, copied, stored_files, told
from support.hostile import at_once
from support.interrupted import POLICIES, config_of, interrupted, numbers, run, small_world
from support.manifests import edit_manifest, listed, write_again
from support.served import lines, samples, trained
from support.toy import ToyData

from adaptive.cli.app import main
from adaptive.config import OptimizerConfig
from adaptive.serving import export_run, scoring
from adaptive.storage.arrays import DTYPES
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint
from adaptive.storage.run_directory import SCORES, read_scores, write_scores
from adaptive.training.components import Components
from adaptive.training.runs import resume_run, resuming
from adaptive.training.runs.state import optimizer_arrays, policy_state, restore

pytestmark = attack

Array = NDArray[Any]
NUM_TRAIN: Final = 256
GROUPS: Final = ("rows", "dense", "policy", "optimizer", "run")
MAY_BE_NAN: Final = ("watched.drift", "watched.snapshots")
ROWS: Final = (".changed", ".seen", ".watched.row", ".watched.summed")  # ascending
SOME: Final = ("defer", "movement")


def with_value(array: Array, value: Any) -> Array:
    """A copy with another first value."""
    array = np.array(array)
    array.reshape(-1)[:1] = value
    return array


def other_forms(array: Array) -> Iterator[tuple[str, Array]]:
    """The array with each other dtype and shape."""
    for dtype in DTYPES:
        if dtype != array.dtype.str:
            with np.errstate(all="ignore"):
                yield f"as {dtype}", array.astype(dtype)
    yield "with one more axis", array[None]
    if array.ndim:
        yield "one entry shorter", array[:-1]
        yield "one entry longer", np.concatenate([array, array[-1:]])
        yield "flat", array.reshape(-1)
        yield "empty", array[:0]
    if array.size:
        yield "a number", array.reshape(-1)[0].reshape(())


def wrong_values(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """The array with content that no run saves."""
    if not array.size:
        return
    if array.dtype.kind == "f" and not name.endswith(MAY_BE_NAN):
        for value in (np.nan, np.inf, -np.inf):
            yield f"{value}", with_value(array, value)
    if array.dtype.kind == "i":
        yield "the least number", with_value(array, np.iinfo(array.dtype).min)
    if array.dtype == np.bool_:
        yield "a byte of 2", with_value(array.view(np.uint8), 2).view(np.bool_)
    if name.endswith(ROWS):
        yield "the largest number", with_value(array, np.iinfo(array.dtype).max)
        if len(array) > 1:
            yield "twice the same row", np.concatenate([array[:1], array[:1], array[2:]])
    if name.endswith(ROWS) and len(array) > 1:
        yield "unsorted", array[::-1]


def content(checkpoint: Checkpoint, group: str) -> dict[str, Array]:
    """Arrays of one group by name."""
    found = getattr(checkpoint, group)
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def changed(checkpoint: Checkpoint, group: str, name: str, array: Array) -> Checkpoint:
    """A checkpoint in which one array is another."""
    value = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)) if group == "dense" else array
    return replace(checkpoint, **{group: {**getattr(checkpoint, group), name: value}})


def held(components: Components) -> dict[str, bytes]:
    """All restored arrays."""
    arrays: dict[str, Any] = {**components.embeddings.rows.state_arrays(), **policy_state(components.embeddings)}
    arrays |= {name: tensor.numpy() for name, tensor in components.model.state_dict().items()}
    arrays |= optimizer_arrays(components.optimizer) | {"random": torch.get_rng_state().numpy()}
    return {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}


@contextmanager
def killed_run(folder: Path, policy: str) -> Iterator[tuple[Path, Components]]:
    """A run that was killed behind a checkpoint, and new components of it."""
    config = config_of(policy, save_every=4, optimizer=OptimizerConfig(name="adam"), tensorboard=False)
    with small_world(NUM_TRAIN) as patch:
        with interrupted(patch, "kill", 6):
            run(folder, config)
        components = resuming._build(config, ToyData(NUM_TRAIN), None)
        with components.embeddings:
            yield folder, components


@pytest.mark.parametrize("policy", list(POLICIES) if SECONDS else SOME)
def test_every_array_of_a_checkpoint_in_every_form(tmp_path: Path, policy: str) -> None:
    """Each array of each group, one at a time, loaded as `resume` loads it: refused, or what the true one gives. The
    usual suite draws two forms of each."""
    rng, number = np.random.default_rng(SEED), 0
    with killed_run(tmp_path / "run", policy) as (folder, components):
        where = folder / "checkpoint-4"
        checkpoint = load_checkpoint(where)
        restore(components, checkpoint, where)
        expected = held(components)
        for group, name, array in ((g, n, a) for g in GROUPS for n, a in content(checkpoint, g).items()):
            forms = [(what, other, True) for what, other in other_forms(array)]
            if group != "policy" and not name.startswith("auc"):  # which nobody loads here
                forms += [(what, other, False) for what, other in wrong_values(name, array)]
            if not SECONDS:
                forms = [forms[place] for place in rng.permutation(len(forms))[:2]]
            for what, other, may_fit in forms:
                load = partial(restore, components, changed(checkpoint, group, name, other), where)
                message, number = told(load, codes=(4,)), number + 1
                case = f"{group} {name} {what}: {other.dtype} {other.shape}"
                assert message is not None or may_fit, f"accepted: {case}"
                is_another_state = group == "policy" and (other.dtype, other.ndim) == (array.dtype, array.ndim)
                if message is None and not is_another_state:  # fewer hot rows, for example: no one could know
                    assert held(components) == expected, f"accepted with other numbers: {case}"
        restore(components, checkpoint, where)
        assert held(components) == expected and number > 50


def digests(folder: Path) -> dict[str, str]:
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in stored_files(folder)}


@pytest.mark.parametrize("policy", list(POLICIES) if SECONDS else SOME[:1])
def test_an_array_of_a_strangers_checkpoint_signed_again(tmp_path: Path, policy: str) -> None:
    """From the files: a run that is refused is left as it is; one that resumes ends with the same numbers. A policy
    may take another state of the same form for its own; what it then does is no fault of ours."""
    campaign = Campaign(f"arrays of a checkpoint, {policy}", 4)
    with killed_run(tmp_path / "run", policy) as (folder, _):
        resume_run(copied(folder, tmp_path / "whole"))
        expected = numbers(tmp_path / "whole")
        entries = listed(json.loads((folder / "checkpoint-4/manifest.json").read_text()))
        for _, rng in campaign.tries():
            place = int(rng.integers(len(entries)))
            attacked = copied(folder, tmp_path / "attacked")
            where, entry = attacked / "checkpoint-4", entries[place]
            array = np.load(where / entry["file"])
            forms = [*other_forms(array), *wrong_values(entry["name"], array)]
            what, other = forms[int(rng.integers(len(forms)))]
            edit_manifest(where, lambda found: write_again(where, listed(found)[place], other))  # noqa: B023
            before = digests(attacked)
            is_policys = entry.get("group") == "policy"
            with at_once():
                message = told(lambda: resume_run(attacked), codes=(4, 9) if is_policys else (4,))  # noqa: B023
            campaign.came("accepted" if message is None else "told")
            if message is None and not is_policys:
                found = numbers(attacked)
                for name, value in expected.items():
                    same = np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f")
                    assert same, (entry["name"], what, name)
            elif message is not None and "policy" not in message:
                assert digests(attacked) == before, (entry["name"], what)


@pytest.mark.parametrize("host", ["memory", "files"] if SECONDS else ["memory"])
def test_rows_of_a_finished_run_as_float32_are_refused_by_eval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """Through the command line: the numbers of rows that changed as float32, signed again."""
    with small_world(NUM_TRAIN):
        tier = {"device_rows": "60%", "host": "memory" if host == "memory" else f"mmap:{tmp_path / 'rows'}"}
        run(tmp_path / "run", config_of("lru", tier=tier))
        where = tmp_path / "run/weights"
        entries = listed(json.loads((where / "manifest.json").read_text()))
        place = next(number for number, entry in enumerate(entries) if entry["name"] == "rows0.changed")
        array = np.load(where / entries[place]["file"]).astype(np.float32)
        edit_manifest(where, lambda found: write_again(where, listed(found)[place], array))
        before = digests(tmp_path / "run")
        with pytest.raises(SystemExit) as exit_:
            main(["eval", str(tmp_path / "run")])
    assert exit_.value.code == 4 and "rows0.changed" in capsys.readouterr().err
    assert digests(tmp_path / "run") == before


def test_scores_of_an_evaluation_in_every_form(tmp_path: Path) -> None:
    """`evaluation.npy`, which `compare` reads: refused by name, or as it was."""
    rng = np.random.default_rng(SEED)
    write_scores(tmp_path, rng.normal(size=50).astype(np.float32), rng.integers(0, 2, 50).astype(np.float32))
    whole = np.load(tmp_path / SCORES)
    for what, other in (*other_forms(whole), *wrong_values("scores", whole), ("transposed", whole.T)):
        np.save(tmp_path / SCORES, other)
        message = told(lambda: read_scores(tmp_path), codes=(4,), names=SCORES)
        assert message or np.array_equal(np.load(tmp_path / SCORES), whole), what


def stored_arrays(folder: Path) -> dict[str, Array]:
    """Every array of an export by name: tensors, and keys of vocabularies."""
    path = folder / json.loads((folder / "model.json").read_text())["tensors"]
    state = scoring.read_safetensors(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    keys = {f"ids/{file.name}": np.load(file) for file in sorted((folder / "ids").iterdir())}
    return {name: np.array(tensor.numpy()) for name, tensor in state.items()} | keys


def store_again(folder: Path, arrays: dict[str, Array], name: str) -> None:
    """Write the file of one array again, as any program would."""
    if name.startswith("ids/"):
        return np.save(folder / name, arrays[name])
    state = {
        key: torch.from_numpy(np.ascontiguousarray(a).reshape(a.shape))
        for key, a in arrays.items()
        if not key.startswith("ids/")
    }
    if (folder / "model.pt").exists():
        return torch.save(state, folder / "model.pt")
    dtypes = {torch.float32: "F32", torch.int64: "I64", torch.float64: "F64", torch.float16: "F16", torch.int32: "I32"}
    header, data = {}, b""
    for key, tensor in state.items():
        raw, shape = tensor.numpy().tobytes(), list(arrays[key].shape)
        offsets = [len(data), len(data) + len(raw)]
        header[key] = {"dtype": dtypes.get(tensor.dtype, "U8"), "shape": shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return None


def forms_of_export(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    yield from other_forms(array)
    with np.errstate(all="ignore"):
        yield "as float16", array.astype(np.float16)
    if array.ndim == 2:
        yield "transposed", array.T
        yield "of another width", array[:, :-1]
    if array.dtype.kind == "f":
        for value in (np.nan, np.inf, -np.inf):
            yield f"with {value}", with_value(array, value)
    if name.startswith("ids/"):
        yield "a key twice", np.concatenate([array[:1], array[:-1]])


def refusal(folder: Path, given: list[dict[str, Any]], expected: list[float]) -> str:
    """The message with which an export is refused; empty: it gives the scores."""
    try:
        found = scoring.load(folder).score(given)
    except ValueError as error:
        return str(error)
    assert found == expected
    return ""


@pytest.mark.parametrize("to", ["torch", "safetensors"] if SECONDS else ["torch"])
def test_every_array_of_an_export_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    """Each array of an export, one at a time, written again: `scoring` refuses and names it, or scores as before. The
    usual suite draws two forms of each."""
    monkeypatch.chdir(tmp_path)
    given, rng = samples(lines(40, seed=7)), np.random.default_rng(SEED)
    options = {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1), "feature_norm": "batch"}
    export_run(trained(tmp_path, model_options=options), "served", to=to)
    expected, arrays, refused = scoring.load("served").score(given), stored_arrays(tmp_path / "served"), 0
    for name, array in arrays.items():
        forms = list(forms_of_export(name, array))
        for what, other in forms if SECONDS else [forms[place] for place in rng.permutation(len(forms))[:2]]:
            store_again(copied(tmp_path / "served", tmp_path / "attacked"), {**arrays, name: other}, name)
            message = refusal(tmp_path / "attacked", given, expected)
            assert not message or (name in message and "expected" in message and "got" in message), (what, message)
            refused += bool(message)
    assert refused > len(arrays)
    bias = arrays["dense.top.0.bias"]
    store_again(tmp_path / "served", {**arrays, "dense.top.0.bias": bias.astype(np.float16)}, "dense.top.0.bias")
    done = subprocess.run([sys.executable, "served/scoring.py"], input="", capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stderr.startswith("error: expected "), done.stderr
