"""Events as samples: what came next, and cancelled lines of invoices."""

import gzip
import io
import tarfile
from pathlib import Path

from benchmarks import study_events as events


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def zipped(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_readers(tmp_path: Path) -> None:
    assert events.read_lines(zipped(tmp_path / "a", "1 2\n\n3 4 5\n")) == [[1, 2], [3, 4, 5]]
    assert events.read_pairs(zipped(tmp_path / "b", "1 7\n1 8\n2 7\n")) == [[7, 8], [7]]
    assert events.read_behaviours(zipped(tmp_path / "d", "5+1+2+3+4 5+2+2+3+4 6+1+2+3+4\n")) == [[5, 6]]


def test_next_items(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    events.write_next_items([[1, 2, 3], [4]], path)
    head, *rest = lines(path)
    assert head == "label,target,last,history"
    assert rest[0::2] == ["1,2,1,", "1,3,2,1"]
    assert [line.split(",")[2:] for line in rest[1::2]] == [["1", ""], ["2", "1"]]
    assert all(line.split(",")[0] == "0" and line.split(",")[1] in "23" for line in rest[1::2])


def test_invoices(tmp_path: Path) -> None:
    archive = tmp_path / "days.tar.gz"
    head = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"
    days = {
        "by-day/2010-12-02.csv": head + "C7,85,BOX,-3,2010-12-02 09:05:00,1.5,,France\n",
        "by-day/2010-12-01.csv": head + '6,84,"A, B",6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom\n',
    }
    with tarfile.open(archive, "w:gz") as files:
        for name, text in days.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            files.addfile(info, io.BytesIO(text.encode()))
    events.write_invoices(archive, tmp_path / "x.csv")
    assert lines(tmp_path / "x.csv") == [
        "cancelled,units,UnitPrice,StockCode,CustomerID,Country,weekday,hour",
        "0,6,2.55,84,17850.0,United Kingdom,2,8",
        "1,3,1.5,85,,France,3,9",
    ]
