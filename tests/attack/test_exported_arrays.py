"""Every array of an export with another dtype, shape or content: refused by name, or harmless."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.attacks import SECONDS, SEED, attack, copied
from support.served import lines, samples, trained
from support.toy import SMALL_DLRM

from adaptive.serving import export_run, scoring
from adaptive.storage.arrays import DTYPES

pytestmark = attack

Array = NDArray[Any]


def other_forms(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """The array with each other dtype, shape and content."""
    with np.errstate(all="ignore"):
        for dtype in (*DTYPES, "<f2"):
            if dtype != array.dtype.str:
                yield f"as {dtype}", array.astype(dtype)
    yield "with one more axis", array[None]
    if array.ndim:
        yield "one entry shorter", array[:-1]
        yield "one entry longer", np.concatenate([array, array[-1:]])
        yield "flat", array.reshape(-1)
        yield "empty", array[:0]
    if array.size:
        yield "a number", array.reshape(-1)[0].reshape(())
    if array.ndim == 2:
        yield "transposed", array.T
        yield "of another width", array[:, :-1]
    if array.dtype.kind == "f":
        for value in (np.nan, np.inf, -np.inf):
            spoiled = np.array(array)
            spoiled.reshape(-1)[:1] = value
            yield f"with {value}", spoiled
    if name.startswith("ids/"):
        yield "a key twice", np.concatenate([array[:1], array[:-1]])


def stored_arrays(folder: Path) -> dict[str, Array]:
    """Every array of an export by name: tensors, and keys of vocabularies."""
    state = torch.load(folder / "model.pt", weights_only=True)
    keys = {f"ids/{file.name}": np.load(file) for file in sorted((folder / "ids").iterdir())}
    return {name: np.array(tensor.numpy()) for name, tensor in state.items()} | keys


def store_again(folder: Path, name: str, array: Array) -> None:
    """Write the file of one array again, as any program would."""
    if name.startswith("ids/"):
        return np.save(folder / name, array)
    state = torch.load(folder / "model.pt", weights_only=True)
    state[name] = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return torch.save(state, folder / "model.pt")


def refusal(folder: Path, given: list[dict[str, Any]], expected: list[float]) -> str:
    """The message with which an export is refused; empty: it gives the scores."""
    try:
        found = scoring.load(folder).score(given)
    except ValueError as error:
        return str(error)
    assert found == expected
    return ""


def test_every_array_of_an_export_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array of an export, one at a time, written again: `scoring` refuses and names it, or scores as before. The
    usual suite draws two forms of each."""
    monkeypatch.chdir(tmp_path)
    given, rng = samples(lines(40, seed=7)), np.random.default_rng(SEED)
    export_run(trained(tmp_path, model_options=SMALL_DLRM), "served")
    expected, arrays, refused = scoring.load("served").score(given), stored_arrays(tmp_path / "served"), 0
    for name, array in arrays.items():
        forms = list(other_forms(name, array))
        for what, other in forms if SECONDS else [forms[place] for place in rng.permutation(len(forms))[:2]]:
            store_again(copied(tmp_path / "served", tmp_path / "attacked"), name, other)
            message = refusal(tmp_path / "attacked", given, expected)
            assert not message or (name in message and "expected" in message and "got" in message), (what, message)
            refused += bool(message)
    assert refused > len(arrays)
