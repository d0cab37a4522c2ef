"""Score samples with an exported model, with torch and numpy only.

Each export has a copy of this file.

    import scoring
    model = scoring.load("DIR")                                    # the folder of the export
    model.score([{"user": "4711", "price": 3.5, "tags": ["a"]}])   # probabilities that labels are 1
    model(dense, bags)                                             # logits from rows
    scorer = scoring.Scorer("DIR")                                 # a model that takes in increments while it scores
    scorer.apply("INCREMENT")                                      # changed rows, new keys, keys without a row

As a program: `python DIR/scoring.py < samples.jsonl` prints a score per line.

Letters: B samples, F features, D width of an embedding vector, N lookups of one feature, T labels.
"""

import copy
import hashlib
import importlib
import importlib.util
import json
import math
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from adaptive.serving.sample_values import ExportFacts, Sample, Values

REMEDY = "The file is damaged or belongs to another model. Export the run again."
INCREMENT, INCREMENT_VERSION = "adaptive-increment", 1
CHANGES = "increment.safetensors"  # of an increment: the changed values
FACTS = "increment.json"  # of an increment: what it applies to, and the digests of its other files


def load(folder: str | Path) -> "Model":
    """Load the model in the folder of an export; its tables are memory-mapped.

    Raises:
        ValueError: for an array that does not fit `model.json`.
    """
    folder = Path(folder)
    sample_values = code_of(folder, "sample_values.py")
    facts = sample_values.read_facts(folder)
    model = Model(facts, folder)
    state = read_tensors(folder / facts.tensors)
    check_arrays(folder / facts.tensors, state, model)
    model.load_state_dict(state, assign=True)
    model.values = sample_values.Values(facts, folder)
    return model.eval()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of an export by name, memory-mapped."""
    state: dict[str, Tensor] = (
        torch.load(path, weights_only=True, mmap=True) if path.suffix == ".pt" else read_safetensors(path)
    )
    return state


def code_of(folder: Path, file: str) -> ModuleType:
    """Import the export's own copy of a file, or of `PACKAGE/__init__.py`."""
    path = folder / file
    spec = importlib.util.spec_from_file_location(f"export_{uuid.uuid4().hex}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that imports, dataclasses and annotations inside the file resolve
    spec.loader.exec_module(module)
    return module


def check_arrays(path: Path, state: Mapping[str, Tensor], model: "Model") -> None:
    """Raise ValueError unless arrays fit the model and dense values are finite.

    Rows of tables are checked when they are looked up; buffers of a custom model may hold any values.
    """
    expected = model.state_dict()
    for name in sorted(expected.keys() | state.keys()):
        form, got = (_form(arrays.get(name)) for arrays in (expected, state))
        if form != got:
            raise ValueError(f"expected {form}, got {got} ({path}: {name}). {REMEDY}")
    names = dict(model.named_parameters()) if model.facts.model["name"] == "custom" else expected
    for name in names:
        if name.startswith("dense.") and not state[name].isfinite().all():
            raise ValueError(f"expected finite values, got NaN or infinity ({path}: {name}). {REMEDY}")


def _form(array: Tensor | None) -> str:
    return "no array" if array is None else f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"


class Model(nn.Module):
    """Plain tables and the dense part; created by `load`."""

    values: "Values"
    """Converts samples to inputs; set by `load`."""

    def __init__(self, facts: "ExportFacts", folder: Path, dense: nn.Module | None = None) -> None:
        super().__init__()
        self.facts, self.folder = facts, folder
        with torch.device("meta"):
            self.tables = nn.ModuleList(
                nn.EmbeddingBag(table.rows, table.width, mode="sum")
                if facts.row_dtype == "float32"
                else Table(table.rows, table.width, facts.row_dtype)
                for table in facts.tables
            )
        self.dense: Any = dense_part(facts, folder) if dense is None else dense  # a module of the export's own code

    def forward(self, dense: Tensor, bags: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return logits (B,), or (B, T) for several labels.

        Args:
            dense: transformed dense inputs (B, dense inputs) float32.
            bags: for each feature the rows of all lookups (N,) and the first lookup of each sample (B,), both int64.

        Raises:
            ValueError: for another number of features, or a row with NaN or infinity.
        """
        logits: Tensor = self.dense(dense, self._vectors(bags))
        return logits

    def _vectors(self, bags: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Return the vectors of all features, as the dense part takes them."""
        features = self.facts.features
        if len(bags) != len(features):
            raise ValueError(f"expected bags of {len(features)} features, got {len(bags)}")
        takes_steps = [getattr(self.dense, "takes_sequences", False) and feature.max_length for feature in features]
        pooled = [
            self.tables[feature.table](rows, torch.arange(len(rows)) if steps else offsets)
            for feature, (rows, offsets), steps in zip(features, bags, takes_steps, strict=True)
        ]
        for feature, vectors in zip(features, pooled, strict=True):
            if not vectors.isfinite().all():
                place = f"{self.facts.tensors}: tables.{feature.table}.weight"
                raise ValueError(f"expected finite values, got NaN or infinity ({place}). {REMEDY}")
        if any(takes_steps):
            ends = [torch.cat([offsets, offsets.new_tensor([len(rows)])]) for rows, offsets in bags]
            lengths = [end.diff() for end, steps in zip(ends, takes_steps, strict=True) if steps]
            return self.dense.gather(pooled, lengths)
        return torch.cat(pooled, dim=1) if self.facts.is_widened else torch.stack(pooled, dim=1)

    @torch.no_grad()
    def score(self, samples: "Sequence[Sample]") -> list[Any]:
        """Return the probability of label 1, or a list of all labels', for each sample; with loss = mse the number.

        A sample maps names of features and dense inputs to values as in the data; a bag is a list of values, or a text
        with the data's separator between them. Absent and empty values are missing.

        Raises:
            ValueError: for an unknown name, or a value of the wrong kind.
        """
        if not samples:
            return []
        outputs = self(*self._inputs(samples)).double()
        is_number = getattr(self.dense, "loss", "log") == "mse"
        scores: list[Any] = (outputs if is_number else torch.sigmoid(outputs)).tolist()
        return scores

    @torch.no_grad()
    def user_vectors(self, samples: "Sequence[Sample]") -> Tensor:
        """Return the user vector (B, E) of each sample, for a model that ranks items by their dot products with it.

        A sample needs values of the item's features as well; they do not count.

        Raises:
            ValueError: for another model, an unknown name, or a value of the wrong kind.
        """
        if not getattr(self.dense, "ranks_items", False):
            raise ValueError("expected a model with loss = in_batch_softmax, got another. Use score()")
        dense, bags = self._inputs(samples)
        users: Tensor = self.dense.user_vectors(dense, self._vectors(bags))
        return users

    def _inputs(self, samples: "Sequence[Sample]") -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        dense, bags = self.values.inputs(samples)
        return torch.from_numpy(dense), [(torch.from_numpy(rows), torch.from_numpy(starts)) for rows, starts in bags]


class Table(nn.Module):
    """Rows in bfloat16, or in steps (int8) with a scale and an offset each; pooled by sum in float32."""

    def __init__(self, rows: int, width: int, dtype: str) -> None:
        super().__init__()
        kind = torch.bfloat16 if dtype == "bfloat16" else torch.int8
        self.weight = nn.Parameter(torch.empty((rows, width), dtype=kind), requires_grad=False)
        self.scales = nn.Parameter(torch.empty((rows, 2)), requires_grad=False) if dtype == "int8" else None

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return summed(self.vectors(rows), offsets)

    def vectors(self, rows: Tensor) -> Tensor:
        """Return the values (N, D) float32 of rows (N,)."""
        values = self.weight[rows].float()
        if self.scales is not None:
            scales = self.scales[rows]
            values = values * scales[:, :1] + scales[:, 1:]
        return values


def summed(vectors: Tensor, offsets: Tensor) -> Tensor:
    """Return the sums (B, D) of bags of vectors (N, D)."""
    return nn.functional.embedding_bag(torch.arange(len(vectors)), vectors, offsets, mode="sum")


def dense_part(facts: "ExportFacts", folder: Path) -> nn.Module:
    """Build the dense part, with random weights, from the export's copies of the model code."""
    assembly = importlib.import_module(f"{code_of(folder, 'dense/__init__.py').__name__}.assembly")
    config = SimpleNamespace(**facts.model)
    inputs = assembly.Inputs(
        tables=tuple(facts.tables[feature.table].name for feature in facts.features),
        num_dense=len(facts.dense),
        dense_names=tuple(dense.name for dense in facts.dense),
        steps=facts.steps,
        labels=tuple(facts.labels),
        sequences={n: feature.max_length for n, feature in enumerate(facts.features) if feature.max_length},
        rows=tuple(facts.tables[feature.table].rows for feature in facts.features),
    )
    if config.name == "custom":
        values = assembly.offered(inputs, config.embedding_dim, seed=0)
        arguments = {name: values[name] for name in config.offered} | config.settings
        model: nn.Module = getattr(code_of(folder, config.file), config.class_name)(**arguments)
    else:
        model = assembly.build_model(config.name, config, inputs)
    whole: nn.Module = assembly.widened(model, config, inputs)
    return whole


SAFETENSORS: Mapping[str, str] = {
    "F32": "<f4", "I64": "<i8", "BF16": "<u2", "I8": "|i1", "F64": "<f8", "F16": "<f2", "I32": "<i4", "U8": "|u1",
    "BOOL": "|b1",
}  # fmt: skip
"""Types of values in safetensors, as numpy stores them."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read name -> tensor, memory-mapped."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype = SAFETENSORS.get(entry["dtype"])
            if dtype is None:
                expected = ", ".join(SAFETENSORS)
                raise ValueError(f"expected one of {expected}, got {entry['dtype']} ({path}: {name}). {REMEDY}")
            offset, shape = 8 + size + entry["data_offsets"][0], tuple(entry["shape"])
            if math.prod(shape) < 2**16:
                array = np.fromfile(path, dtype, math.prod(shape), offset=offset).reshape(shape)
            else:
                array = np.memmap(path, dtype, mode="c", offset=offset, shape=shape)
            tensor = torch.from_numpy(array)
            tensors[name] = tensor.view(torch.bfloat16) if entry["dtype"] == "BF16" else tensor
    return tensors


# -- increments ------------------------------------------------------------------------------------------------------


class Scorer:
    """A model that takes in increments while other threads score.

    Each call scores with one state of the model. All methods may be called from any thread.
    """

    def __init__(self, folder: str | Path) -> None:
        """Load the export in `folder`; raises what `load` does."""
        self._model = load(folder)
        self._fingerprint: str | None = None  # of the state of the model; known once it was needed
        self._applying = threading.Lock()

    @property
    def model(self) -> Model:
        """The present model; `apply` replaces it and does not change it."""
        return self._model

    def score(self, samples: "Sequence[Sample]") -> list[Any]:
        """Do what `Model.score` does."""
        return self._model.score(samples)

    def user_vectors(self, samples: "Sequence[Sample]") -> Tensor:
        """Do what `Model.user_vectors` does."""
        return self._model.user_vectors(samples)

    def apply(self, folder: str | Path) -> None:
        """Take in the increment in `folder`; calls that begin later score with the newer model.

        Changed rows and the dense part are copied into memory, other rows stay in the files of the export. The first
        call reads all tables once, to identify the export.

        Raises:
            ValueError: for an increment that is damaged, has another base, or has other code. Then nothing has changed.
        """
        with self._applying:
            model = self._model
            increment = read_increment(Path(folder), sys.modules[type(model.values).__module__].read_facts)
            if code := [name for name in increment.files if name.endswith(".py")]:
                raise ValueError(
                    f"expected the code that runs, got other code in {', '.join(code)} ({folder}). Write the merged "
                    "export with adaptive-train export --apply, and load it in a new process."
                )
            if self._fingerprint is None:
                ids = {m.facts.vocabulary: m.keys_by_row() for m in model.values.ids if m.facts.vocabulary}
                arrays = {name: array_of(tensor) for name, tensor in model.state_dict().items()} | ids
                digests = {name: digest_of(array) for name, array in arrays.items()}
                self._fingerprint = fingerprint(model.facts, digests)
            increment.check_base(self._fingerprint, model.folder)
            self._model = changed_model(model, increment)
            self._fingerprint = increment.result


@dataclass(frozen=True)
class Increment:
    """An increment, with verified files.

    Attributes:
        base, result: fingerprints of the exports before and after it.
        files: digest of each file that replaces one of the export, by path.
        state: changed values, by the names of the export's tensors. Of table N, they are those of the rows
            `tables.N.rows`; or of the keys `tables.N.keys` and of all rows after those of keys. The keys
            `tables.N.gone` have no row any more.
    """

    folder: Path
    facts: "ExportFacts"
    base: str
    result: str
    files: Mapping[str, str]
    state: Mapping[str, Tensor]

    def check_base(self, fingerprint: str, folder: Path) -> None:
        """Raise ValueError unless the export in `folder` has the fingerprint of the base."""
        if fingerprint == self.result:
            raise ValueError(f"expected the base of {self.folder}, got an export with this increment ({folder}).")
        if fingerprint != self.base:
            raise ValueError(
                f"expected the export {self.base[:12]}, which is the base of {self.folder}, got {fingerprint[:12]} "
                f"({folder}). Apply increments in the order in which they were made, or export the run completely."
            )

    def array(self, table: int, name: str) -> NDArray[Any] | None:
        """Return rows, keys, or keys without a row (n,) of a table; None if it has none."""
        tensor = self.state.get(f"tables.{table}.{name}")
        return None if tensor is None else array_of(tensor)

    def merge(self, table: int, keys: NDArray[np.int64] | None) -> "Merge":
        """Return how the rows of a table change.

        Args:
            keys: (K,) of its rows before; None if rows are no keys.
        """
        rows, changed = self.array(table, "rows"), self.array(table, "keys")
        if rows is not None:
            return Merge(rows, None, None)
        assert keys is not None and changed is not None, f"table {table}: neither rows nor keys"
        gone, order = self.array(table, "gone"), np.argsort(keys, kind="stable")
        merged = np.concatenate([keys, changed[~contains(keys[order], changed)]])
        source = None
        if gone is not None:  # rows are in the order of keys
            merged = np.sort(merged[~contains(gone, merged)], kind="stable")
            source = np.searchsorted(keys, merged)
        order = np.argsort(merged, kind="stable")
        places = order[np.searchsorted(merged[order], changed)]
        return Merge(np.concatenate([places, np.arange(len(merged), self.facts.tables[table].rows)]), merged, source)


@dataclass(frozen=True)
class Merge:
    """Rows of a table after an increment.

    Attributes:
        rows: (n,) rows that the increment has, ascending.
        keys: (K,) keys of the first rows; None if rows are no keys.
        source: (K,) row before, of rows that the increment does not have; None: the same row.
    """

    rows: NDArray[np.int64]
    keys: NDArray[np.int64] | None
    source: NDArray[np.int64] | None


def contains(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each of `wanted` (n,) whether it is one of the ascending keys (K,)."""
    places = np.searchsorted(keys, wanted)
    is_one = np.zeros(len(wanted), np.bool_)
    inside = places < len(keys)
    is_one[inside] = keys[places[inside]] == wanted[inside]
    return is_one


def read_increment(folder: Path, read_facts: Callable[[Path], "ExportFacts"]) -> Increment:
    """Read an increment and verify all of its files; ValueError if one is missing, damaged or too many."""
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        form, version = facts["format"], facts["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"expected a folder with an increment, got {error!r} ({folder / FACTS})") from None
    if (form, version) != (INCREMENT, INCREMENT_VERSION):
        expected = f"{INCREMENT!r} of version {INCREMENT_VERSION}"
        raise ValueError(f"expected {expected}, got {form!r} of version {version!r} ({folder / FACTS})")
    files = {name: file_digest(folder / name) for name in file_names(folder) if name != FACTS}
    for name in sorted(files.keys() | facts["files"].keys()):
        if files.get(name) != facts["files"].get(name):
            expected, got = (listed.get(name, "no file") for listed in (facts["files"], files))
            raise ValueError(f"expected sha256 {expected}, got {got} ({folder / name}). Copy the increment again.")
    state = read_safetensors(folder / CHANGES)
    del files[CHANGES]
    return Increment(folder, read_facts(folder), facts["base"], facts["result"], files, state)


def file_names(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, without those that Python caches."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in files if "__pycache__" not in path.parts)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def array_of(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16 as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def begin_digest(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return the digest of `digest_of` before the first byte."""
    return hashlib.sha256(f"{dtype.str} {shape}".encode())


def digest_of(array: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's type, shape and bytes."""
    digest = begin_digest(array.dtype, array.shape)
    digest.update(bytes_of(array))
    text: str = digest.hexdigest()
    return text


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def fingerprint(facts: "ExportFacts", digests: Mapping[str, str]) -> str:
    """Return the SHA-256 that identifies what an export computes.

    Args:
        facts: its `model.json`; which run it is from does not count.
        digests: digest of each tensor by name, and of each file of `ids` by path.
    """
    described = {name: value for name, value in asdict(facts).items() if name != "run"}
    return hashlib.sha256(json.dumps([described, digests], sort_keys=True).encode()).hexdigest()


def changed_model(model: Model, increment: Increment) -> Model:
    """Return a model with an increment; it shares the rows that have not changed with `model`."""
    keys = {ids.facts.table: ids.keys_by_row() for ids in model.values.ids if ids.facts.vocabulary}
    merges = [increment.merge(number, keys.get(number)) for number in range(len(model.tables))]
    sizes = [len(merge.rows) for merge in merges]
    tables = [replace(table, rows=size) for table, size in zip(increment.facts.tables, sizes, strict=True)]
    changes = Model(replace(increment.facts, tables=tables), model.folder, copy.deepcopy(model.dense))
    names = changes.state_dict().keys() | {name for name in increment.state if name.startswith("dense.")}
    arrays = {name: tensor.clone() for name, tensor in increment.state.items() if name in names}
    check_arrays(increment.folder / CHANGES, arrays, changes)
    changes.load_state_dict(arrays, assign=True)
    for number, merge in enumerate(merges):
        changes.tables[number] = changed_table(model.tables[number], changes.tables[number], merge)
    changes.facts = increment.facts
    files = {f.vocabulary: merges[f.table].keys for f in increment.facts.features if f.vocabulary}
    ids = {file: keys for file, keys in files.items() if keys is not None}
    changes.values = type(model.values)(increment.facts, model.folder, ids)
    return changes.eval()


def changed_table(table: nn.Module, changes: Any, merge: Merge) -> nn.Module:
    """Return a table with the values of `changes` in the rows of a merge."""
    rows, source = merge.rows, merge.source
    if isinstance(table, Changed):
        old = table.rows.numpy()
        if source is None:
            is_kept, moved = ~contains(rows, old), old
        else:
            stays = np.ones(len(source), np.bool_)
            stays[rows[rows < len(source)]] = False
            is_kept = contains(source[stays], old)
            moved = np.searchsorted(source[stays], old)
            moved[is_kept] = np.flatnonzero(stays)[moved[is_kept]]
            source = source if table.source is None else np.append(table.source.numpy(), 0)[source]
        rows = np.concatenate([moved[is_kept], rows])
        order = np.argsort(rows)
        rows = rows[order]
        for name, new in changes.state_dict().items():
            values = torch.cat([table.changes.state_dict()[name][is_kept], new])[order]
            setattr(changes, name, nn.Parameter(values, requires_grad=False))
        table = table.table
    return Changed(table, changes, rows, source) if len(rows) else table


class Changed(nn.Module):
    """A table after increments: rows of the export, and those that have changed since.

    Attributes:
        rows: (n,) ascending rows, whose values are those of `changes`, in order.
        source: (K,) row of the export for each of the first rows; None: the same row.
    """

    def __init__(
        self, table: nn.Module, changes: Any, rows: NDArray[np.int64], source: NDArray[np.int64] | None
    ) -> None:
        super().__init__()
        self.table, self.changes, self.rows = table, changes, torch.from_numpy(rows)
        self.source = None if source is None else torch.from_numpy(source)

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        places = torch.searchsorted(self.rows, rows)
        is_changed = self.rows[places.clamp(max=len(self.rows) - 1)] == rows
        others = rows[~is_changed]
        vectors = torch.empty((len(rows), self.changes.weight.shape[1]))
        vectors[is_changed] = vectors_of(self.changes, places[is_changed])
        vectors[~is_changed] = vectors_of(self.table, others if self.source is None else self.source[others])
        return summed(vectors, offsets)


def vectors_of(table: Any, rows: Tensor) -> Tensor:
    """Return the vectors (N, D) of rows (N,) of a table."""
    vectors: Tensor = table.vectors(rows) if isinstance(table, Table) else table.weight[rows]
    return vectors


if __name__ == "__main__":
    try:
        loaded = load(Path(__file__).parent)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    loaded.values.score_lines(loaded.score, sys.stdin.buffer)
