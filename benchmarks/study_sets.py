"""Real data for the study of skipping, from the folder ADAPTIVE_DATA.

The default is `../shared/data`.

Sets with labels are read as they are. Lists of what somebody looked at or bought have none: there each
item that came next is a sample with label 1, and the same place with another item, drawn from those of all samples
(so as often as they come), one with label 0, as TBSM is trained (https://github.com/facebookresearch/tbsm).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import study_events as events
from benchmarks.study_cells import Setting

SCHEMAS: Final = Path(__file__).resolve().parent.parent / "adaptive" / "data" / "schemas"
_MODEL: Final = {"embedding_dim": 8, "bottom_mlp": "32-8", "top_mlp": "64-32-1"}

Data = dict[str, Any]  # of a TrainConfig: data and data_options


def data_folder() -> Path:
    """Where real data would lie."""
    return Path(os.environ.get("ADAPTIVE_DATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data"))


def is_there(setting: Setting) -> bool:
    """The stream is built in; a real set must have its files."""
    return setting.data not in FILES or (data_folder() / FILES[setting.data]).is_file()


def data_of(name: str, folder: Path) -> Data:
    """`data` and `data_options` of a set; files that must be made first are kept in `folder`."""
    return _MAKERS[name](data_folder() / FILES.get(name, ""), folder)


# --- sets with labels ----------------------------------------------------------------------------------------------


def _labelled(schema: str, **options: Any) -> Callable[[Path, Path], Data]:
    def data(source: Path, folder: Path) -> Data:
        return {"data": f"csv:{source}", "data_options": {"schema_path": SCHEMAS / schema, **options}}

    return data


def _retail(source: Path, folder: Path) -> Data:
    made = _made(folder / "online-retail.csv", lambda path: events.write_invoices(source, path))
    return {"data": f"csv:{made}", "data_options": {"schema_path": SCHEMAS / "online-retail.toml", "holdout": 0.1}}


# --- what came next ------------------------------------------------------------------------------------------------


def _in_time(read: Callable[[Path], events.Sequences]) -> Callable[[Path, Path], Data]:
    """Sequences in the order of their time: the last tenth of the samples is for evaluation."""

    def data(source: Path, folder: Path) -> Data:
        made = _made(folder / f"{source.name}.csv", lambda path: events.write_next_items(read(source), path))
        options = {"schema_path": SCHEMAS / "next-item.toml", "holdout": 0.1}
        return {"data": f"csv:{made}", "data_options": options}

    return data


def _by_user(read: Callable[[Path], events.Sequences]) -> Callable[[Path, Path], Data]:
    """Read sequences without a common time; the last item of each is for evaluation."""

    def data(source: Path, folder: Path) -> Data:
        train, last = folder / f"{source.name}.train.csv", folder / f"{source.name}.last.csv"
        _made(train, lambda path: events.write_next_items(read(source), path, part="but last"))
        _made(last, lambda path: events.write_next_items(read(source), path, part="last"))
        schema = SCHEMAS / "next-item.toml"
        options = {"schema_path": schema, "eval_data": str(last), "shuffle_buffer": 1 << 20}
        return {"data": f"csv:{train}", "data_options": options}

    return data


def _sequences(read: Callable[[Path], events.Sequences]) -> Callable[[Path, Path], Data]:
    """A candidate and the history before it, a sequence that shares its table; the last quarter is for evaluation."""

    def data(source: Path, folder: Path) -> Data:
        path = folder / f"{source.name}.sequences.csv"
        made = _made(path, lambda path: events.write_sequences(read(source), path))
        return _of_sequences(made, {"target": 400_000}, {"history": "target"})

    return data


def _shaped(_: Path, folder: Path) -> Data:
    """The built-in sequences as such a file."""
    made = _made(folder / "shaped.csv", lambda path: events.write_stream(path, samples=28_000))
    rows = {"user": 100_000, "target": 200, "category": 10}
    return _of_sequences(made, rows, {"history": "target", "categories": "category"}, mapping="num_embeddings")


def _of_sequences(path: Path, rows: dict[str, int], sequences: dict[str, str], mapping: str = "hash_rows") -> Data:
    """`rows`: column -> rows of its table. `sequences`: column -> the column whose table it shares."""
    column = '[[categorical]]\ncolumns = ["{}"]\nkind = "int"\n' + mapping + ' = {}\ntable = "{}"\n'
    more = f'inner_separator = "|"\nsequence = true\nmax_length = {events.STEPS}\n'
    text = 'label = { column = "label" }\n'
    text += "".join(column.format(name, size, name) + 'missing = "reject"\n' for name, size in rows.items())
    text += "".join(column.format(name, rows[table], table) + more for name, table in sequences.items())
    schema = path.with_suffix(".toml")
    schema.write_text(text, "utf-8")
    return {"data": f"csv:{path}", "data_options": {"schema_path": schema, "holdout": 0.25}}


def _made(path: Path, make: Callable[[Path], object]) -> Path:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    return path


_DIGINETICA: Final = "diginetica-sessions/derived/all_train_seq.lines.txt.gz"
_JD: Final = "jd-micro-behaviors/JD_Applicances_sample.gz"
FILES: Final[Mapping[str, str]] = {
    "kdd12-click": "kdd12-click/Click_prediction_small.first32000.csv.gz",
    "online-retail": "online-retail/by-day_2010-12-01_2011-09-30.tar.gz",
    "diginetica": _DIGINETICA,
    "diginetica-sequences": _DIGINETICA,
    "amazon-games": "amazon-sequences/Video.txt.gz",
    "jd": _JD,
    "jd-sequences": _JD,
}
_MAKERS: Final[Mapping[str, Callable[[Path, Path], Data]]] = {
    "kdd12-click": _labelled("kdd12-click.toml", holdout=0.2, shuffle_buffer=1 << 16),
    "online-retail": _retail,
    "diginetica": _in_time(events.read_lines),
    "amazon-games": _by_user(events.read_pairs),
    "jd": _by_user(events.read_behaviours),
    "diginetica-sequences": _sequences(events.read_lines),
    "jd-sequences": _sequences(events.read_behaviours),
    "taobao-shaped": _shaped,
}


def _setting(data: str, batch_size: int, epochs: int = 1, name: str = "", **config: Any) -> Setting:
    return Setting(
        f"{data}{name}", data, {"batch_size": batch_size, "epochs": epochs, "model_options": _MODEL, **config}
    )


LARGE: Final = (
    _setting("kdd12-click", 16),
    _setting("online-retail", 64),
    _setting("diginetica", 256),
    _setting("amazon-games", 256, epochs=3),
    _setting("jd", 64, epochs=4),
)
