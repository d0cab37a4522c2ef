"""Fixtures of the attacks on running processes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.forked import Nursery
from support.interrupted import config_of, interrupted, run, small_world
from support.rank_pool import rank_pool

pool = pytest.fixture(scope="session")(rank_pool)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Makes processes in which libraries are loaded, and the kernels that were loaded `here`."""
    with closing(Nursery()) as made:
        yield made


@pytest.fixture(scope="session")
def cut_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed behind a checkpoint."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    with small_world(num_train=256) as patch, interrupted(patch, "kill", 6):
        run(folder, config_of("lru", save_every=4, tensorboard=True))
    return folder
