"""Hold-out by fraction, by file and by time; marks; the bounded shuffle."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.batch import concatenate
from adaptive.data import listen_to_reading
from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.open import open_dataset
from adaptive.data.rows.data_files import find_files
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.data.rows.split import read_part, split_last, survey
from adaptive.data.sampling import block_rows
from adaptive.data.text.text_reader import TextSource
from adaptive.errors import ConfigError, InputError

FORM = RowFormat((Column("label", kernels.LABEL_BINARY), Column("n", kernels.DENSE_INTEGER)), separator=",")


def source_of(folder, texts):
    for number, text in enumerate(texts):
        (folder / f"part{number}").write_bytes(gzip.compress(text) if number % 2 else text)
    files = find_files(str(folder / "part*"))
    log = RejectLog(tuple(str(file.path) for file in files), DataOptions(max_bad_fraction=1.0), None)
    return TextSource(files, files, (FORM,) * len(files), log, chunk_bytes=13), tuple(range(len(files)))


def numbers(source, part, rows=3):
    return [int(n) for block in read_part(source, part, rows) for n in block.columns.dense[: block.num_rows, 0]]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    bad_every=st.integers(2, 9),
    fraction=st.floats(0.01, 0.99),
    mark_rows=st.integers(1, 50),
)
def test_the_two_parts_are_all_good_rows_in_order(tmp_path_factory, sizes, bad_every, fraction, mark_rows):
    total, texts = 0, []
    for size in sizes:
        lines = [f"1,{total + n}" if (total + n) % bad_every else "bad" for n in range(size)]
        texts.append("\n".join(lines).encode())
        total += size
    good = [n for n in range(total) if n % bad_every]
    source, files = source_of(tmp_path_factory.mktemp("split"), texts)
    if not good:
        with pytest.raises(InputError, match="expected rows, got no good one"):
            survey(source, files)
        return
    actual = survey(source, files, mark_rows=mark_rows)
    assert actual.num_rows == len(good)
    num_train = len(good) - int(np.ceil(len(good) * fraction))
    if not num_train:
        with pytest.raises(InputError, match="expected a share that leaves rows to train on"):
            split_last(actual, files, fraction)
        return
    train, evaluation = split_last(actual, files, fraction)
    assert numbers(source, train) == good[:num_train]
    assert numbers(source, evaluation) == good[num_train:]
    assert numbers(source, evaluation, rows=7) == good[num_train:]
    assert sum(source.log.counts.values()) == total - len(good)
    assert source.log.num_lines == total


def test_a_listener_hears_of_each_read_of_all_files(tmp_path):
    begun = []

    def begin():
        begun.append([])
        return lambda done, total: begun[-1].append((done, total))

    with listen_to_reading(begin):
        csv(tmp_path, 10)
        assert not begun
        csv(tmp_path, 10, holdout=0.2)
    csv(tmp_path, 10, holdout=0.2)
    size = (tmp_path / "d").stat().st_size
    assert begun == [[(size, size)]]


def csv(tmp_path, lines, **options):
    (tmp_path / "s.toml").write_text(
        'header = false\ncolumns = ["l", "n", "c"]\nlabel.column = "l"\n'
        '[[dense]]\ncolumns = ["n"]\n[[categorical]]\ncolumns = ["c"]\nnum_embeddings = 1000\nkind = "int"\n'
    )
    (tmp_path / "d").write_text("".join(f"1,{n},{n % 1000}\n" for n in range(lines)))
    return open_dataset(f"csv:{tmp_path / 'd'}", DataOptions(schema_path=tmp_path / "s.toml", **options))


def order(batches):
    return [int(n) for batch in batches for n in batch.dense[:, 0]]


def test_holdout_is_the_last_fraction_and_every_pass_is_the_same(tmp_path):
    data = csv(tmp_path, 1000, holdout=0.2)
    assert data.num_train_samples() == 800
    for batch_size in (1, 64, 800, 5000):
        assert order(data.train(batch_size)) == list(range(800))
        assert order(data.evaluation(batch_size)) == list(range(800, 1000))
    assert [batch.num_samples for batch in data.train(300)] == [300, 300, 200]


def test_the_shuffle_is_bounded_seeded_and_keeps_rows_together(tmp_path):
    data = csv(tmp_path, 1000, shuffle_buffer=250, holdout=0.1)
    assert block_rows(250, 60) == 300
    epochs = [order(data.train(60, epoch=epoch)) for epoch in (0, 1)]
    for actual in epochs:
        for first in range(0, 900, 300):
            assert sorted(actual[first : first + 300]) == list(range(first, first + 300))
    assert epochs[0] != epochs[1]
    assert order(data.train(60)) == epochs[0]
    batch = concatenate(list(data.train(60)))
    assert batch.ids.tolist() == batch.dense[:, 0].astype(int).tolist()
    assert batch.origin.lines.tolist() == (batch.dense[:, 0].astype(int) + 1).tolist()
    assert [b.num_samples for b in data.train(70)] == [70] * 12 + [60]
    assert order(data.evaluation(60)) == list(range(900, 1000))
    assert order(csv(tmp_path, 1000, shuffle_buffer=250, holdout=0.1, seed=1).train(60)) != epochs[0]


def test_evaluation_by_file_counts_bad_lines_of_both(tmp_path):
    (tmp_path / "e").write_text("1,7,7\nx\n0,8,8\n")
    data = csv(tmp_path, 10, eval_data=str(tmp_path / "e"), max_bad_fraction=0.5)
    assert order(data.train(100)) == list(range(10))
    assert not data.rejects()
    batch = concatenate(list(data.evaluation(1)))
    assert batch.origin.where(1) == f"{tmp_path / 'e'}:3"
    assert data.rejects() == {"columns": 1}


def test_too_many_bad_lines_show_when_the_rows_are_counted(tmp_path):
    (tmp_path / "d2").write_text("x\n" * 10)
    csv(tmp_path, 1000)
    options = DataOptions(schema_path=tmp_path / "s.toml", holdout=0.5)
    with pytest.raises(InputError, match=r"10 of 1,010 lines read so far are bad"):
        open_dataset(f"csv:{tmp_path / 'd'},{tmp_path / 'd2'}", options)


def test_two_splits_are_refused():
    with pytest.raises(ValueError, match="got eval_data and holdout"):
        DataOptions(eval_data="x", holdout=0.5)


DAYS_MS = [1_760_000_000_000 + 86_400_000 * day for day in range(4)]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"time_split": 1_760_200_000}, r"expected a time in the unit of the data, such as 176\d{10}, got 1760200000"),
        ({"time_split": "2025-10-12"}, r"expected a number in the unit of the time column, got '2025-10-12'.*millisec"),
    ],
    ids=lambda value: str(*value) if isinstance(value, dict) else "",
)
def test_milliseconds_are_refused_where_seconds_are_needed(tmp_path, option, message):
    (tmp_path / "s.toml").write_text(
        'label.column = "y"\ntime = { column = "t" }\n[[categorical]]\ncolumns = ["u"]\nkind = "int"\nhash_rows = 9\n'
    )
    (tmp_path / "d").write_text("y,u,t\n" + "".join(f"1,3,{time}\n" for time in DAYS_MS))

    with pytest.raises((ConfigError, InputError), match=message):
        open_dataset(f"csv:{tmp_path / 'd'}", DataOptions(schema_path=tmp_path / "s.toml", **option))


def test_urls_and_files_that_are_no_text_have_advice_that_works(tmp_path):
    (tmp_path / "s.toml").write_text('label.column = "y"\n[[categorical]]\ncolumns = ["u"]\nhash_rows = 9\n')
    options = DataOptions(schema_path=tmp_path / "s.toml")
    with pytest.raises(InputError, match=r"expected files of this machine, got 's3://bucket/a\.csv'\. Copy them first"):
        open_dataset("csv:s3://bucket/a.csv", options)
    for content, message in ((b"\x28\xb5\x2f\xfdabc", "zstd"), (b"PAR1abc", "Parquet.*parquet:PATH")):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(InputError, match=f"expected text, plain or gzip, got {message}"):
            list(open_dataset(f"csv:{tmp_path / 'a'}", options).train(2))
