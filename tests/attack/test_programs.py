"""Random programs of library calls: with these tables in two places, and with dense tables in plain torch and float64.

Both places give the same bits. The oracle agrees within `TOLERANCE`, relative to 1 + the value. Why this number:
float32 rounds each of the few hundred operations behind a gradient by 2^-24 of values of the order of 1 and below; most
of it cancels, and a few times 2^-24 is left. An optimizer multiplies the error of a gradient by its rate over its
divisor. Rates are at most 1 and divisors at least 0.01, most of them 0.1 and above, so a few times 100 * 2^-24 is left.
A lost, doubled or misplaced update moves a row by its rate times its gradient: a hundred times as much, or more.
"""

import shutil
from pathlib import Path
from typing import Final

from support.attacks import SECONDS, Campaign, attack
from support.oracle import Dense
from support.program_runs import Log, Loop, Tiered
from support.programs import Program, draw_program

pytestmark = attack

TOLERANCE: Final = 2e-5


def logs_of(program: Program, folder: Path) -> list[Log]:
    """Logs of a program in its two places."""
    return [Loop(program, Tiered(program, place, folder / place.policy)).run() for place in program.places]


def test_random_programs_compute_what_the_oracle_computes(tmp_path: Path) -> None:
    campaign, worst = Campaign("random programs", 1000 if SECONDS >= 60 else 6), 0.0
    for seed, _ in campaign.tries():
        program, folder = draw_program(seed), tmp_path / str(seed)
        try:
            here, there = logs_of(program, folder)
            here.assert_equals(there)
            if program.is_lossless:
                worst = max(worst, here.assert_close(Loop(program, Dense(program)).run(), TOLERANCE))
        except BaseException as error:
            error.add_note(str(program))
            raise
        campaign.came("skipping or arranging" if program.skip else "compared with the oracle")
        shutil.rmtree(folder, ignore_errors=True)
    print(f"random programs: the largest difference from the oracle was {worst:.0%} of the tolerance")
