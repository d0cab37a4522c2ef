"""`doctor --ranks`: what exchanges cost, and what is wrong with the network that they cross."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.thread_ranks import Town, on_ranks, transport_of

from adaptive.embeddings.ranks.measure import (
    RankLink,
    RankLinks,
    busiest,
    measure,
    read_interface_bytes,
    read_interface_speed,
    verdicts,
)


def links(**changed: Any) -> RankLinks:
    first = RankLink("a", "10.0.0.1", None, "eth0", 1.25e9, 0.1, 1e9)
    second = replace(first, **{"host": "b", "address": "10.0.0.2", **changed})
    slowest = min(first.bytes_per_s, second.bytes_per_s)
    return RankLinks(2, 2, 0.1, slowest, {"rank 0": first, "rank 1": second})


def test_facts_are_equal_on_all_ranks_and_of_each() -> None:
    town = Town(3)
    one, *others = on_ranks(3, lambda ranks: measure(ranks, transport_of(ranks)), town=town)
    assert all(other == one for other in others)
    assert one.ranks == 3 and one.hosts == 1 and len(one.of_each_rank) == 3
    assert one.exchange_ms == max(link.exchange_ms for link in one.of_each_rank.values()) > 0
    assert one.bytes_per_s == min(link.bytes_per_s for link in one.of_each_rank.values()) > 0


def test_a_good_network_has_no_problems() -> None:
    text, problems = verdicts(links())
    assert not problems
    assert text == (
        "ranks: an exchange takes 0.10 ms, so the 4 exchanges of a step take 0.4 ms; each megabyte of rows or "
        "gradients adds 1.0 ms (1,000 MB/s from each rank)"
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"interface": "lo"}, "rank 1 on b has the address 10.0.0.2 and sends by lo. Set GLOO_SOCKET_IFNAME"),
        ({"address": "127.0.1.1"}, "rank 1 on b has the address 127.0.1.1"),
        ({"bytes_per_s": 0.2e9}, "rank 1 sends 200 MB/s by eth0, which supports 1,250 MB/s"),
        ({"bytes_per_s": 5e7, "interface_bytes_per_s": None}, "the network is slow for training on ranks (by eth0)"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(changed: dict[str, Any], told: str) -> None:
    _, problems = verdicts(links(**changed))
    assert len(problems) == 1 and problems[0].startswith("problem: ") and told in problems[0]


def test_one_host_whose_cores_are_busy() -> None:
    _, problems = verdicts(replace(links(interface="lo"), hosts=1, exchange_ms=5.0))
    assert len(problems) == 1 and "2 ranks share its cores" in problems[0]


def test_the_interface_is_the_one_that_sent(tmp_path: Path) -> None:
    head = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes    packets\n"
    file = tmp_path / "dev"
    file.write_text(head + "    lo: 5 0 0 0 0 0 0 0 700 1\n  eth0: 6 0 0 0 0 0 0 0 80 1\n")
    assert read_interface_bytes(file) == {"lo": 700, "eth0": 80}
    assert busiest({"lo": 700, "eth0": 10}, read_interface_bytes(file)) == "eth0"
    assert read_interface_bytes(tmp_path / "none") == {} and busiest({}, {}) == "unknown"


def test_the_speed_of_an_interface(tmp_path: Path) -> None:
    for name, text in (("eth0", "10000\n"), ("lo", ""), ("wlan0", "-1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(text)
    assert read_interface_speed("eth0", tmp_path) == 1.25e9
    assert read_interface_speed("lo", tmp_path) is None and read_interface_speed("wlan0", tmp_path) is None
    assert read_interface_speed("none", tmp_path) is None
