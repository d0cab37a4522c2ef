"""The study of quality: every way trains, tables say what was found, counts of rows are judged against chance."""

from functools import partial

import pytest
from toy import ToyData

from adaptive.batch import concatenate
from benchmarks import study_hash
from benchmarks.study_quality import SETS, WAYS, Held, Run, logistic, ours, tables, wanted


@pytest.fixture(name="held", scope="module")
def held_fixture() -> Held:
    toy = ToyData(2000, 500)
    return Held(toy, concatenate(list(toy.train(512))), concatenate(list(toy.evaluation(512))))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_learns_something(held: Held, way: str) -> None:
    auc, loss, calibration = WAYS[way](held, 0, 50)
    assert auc > 0.6 and 0 < loss < 0.69 and 0.5 < calibration < 2


def test_ways_differ_where_they_should(held: Held) -> None:
    assert ours(held, 0, 200) == ours(held, 0, 200) != ours(held, 1, 200)
    assert len({way(held, 0, 200) for way in (ours, partial(ours, base_rate=False), partial(ours, linear=0.3))}) == 3
    assert logistic(held, 0, 200) == logistic(held, 1, 50)


def test_tables_have_means_and_deviations_of_all_seeds() -> None:
    runs = {run: (0.5 + run.seed / 100, 0.4, 0.9 + run.seed / 10) for run in wanted()}
    made = tables(runs)
    assert len(set(runs)) == len(list(wanted())) and Run(SETS[0], "dlrm", 2048, 4) in runs
    assert "| jd | dlrm | 0.5200 ± 0.0158 | 0.4000 ± 0.0000 | 0.90 to 1.30 |" in made["peers"]
    assert "| jd | logistic regression | 0.5000 | 0.4000 | 0.90 to 0.90 |" in made["peers"]
    assert made["bias"].count("bias drawn, batches of 2048") == len(SETS)
    assert "| kdd12-click | crc32 | 0.5200 | 0.0158 | 0.0000 |" in made["hash"]
    assert tables({})["hash"].count("\n") == 1  # runs that are missing are not shown


def test_rows_hit_are_judged_against_chance() -> None:
    even = [study_hash.mixed(number) for number in range(5000)]
    assert abs(study_hash._deviation(even, 1 << 14) or 99) < 4
    crowded = [value >> 1 for value in even]  # half of the rows
    assert (study_hash._deviation(crowded, 1 << 14) or 0) < -10
    assert study_hash._deviation(even, 100) is None
