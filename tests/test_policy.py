"""`arranges`: one answer to whether a policy makes batches of its own; `order_of`: whose score its order speaks of."""

from typing import Any

from numpy.typing import NDArray

from adaptive.policies.hotline import Hotline
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats, arranges, order_of


def test_a_policy_arranges_if_it_or_its_class_has_an_arrange_of_its_own() -> None:
    assert not arranges(LRU) and not arranges(LRU())
    assert arranges(Hotline) and arranges(Hotline())


def test_an_instance_that_is_given_an_arrange_arranges() -> None:
    policy = LRU()
    policy.arrange = lambda batches, view: batches  # type: ignore[method-assign]
    assert arranges(policy) and not arranges(LRU)


def test_an_order_speaks_of_the_score_of_its_own_class() -> None:
    class Other(LRU):
        def score(self, rows: RowStats) -> NDArray[Any]:
            return -rows.last_access

    class OtherAndItsOrder(Other):
        order = ("accesses",)

    class Below(OtherAndItsOrder):
        pass

    class Plain(Policy):
        def score(self, rows: RowStats) -> NDArray[Any]:
            return rows.rows

    assert order_of(LRU()) == ("last_access",)
    assert order_of(LFU()) == ("accesses", "last_access")
    assert order_of(OtherAndItsOrder()) == order_of(Below()) == ("accesses",)
    assert order_of(Other()) == order_of(Plain()) == ()


def test_an_order_does_not_count_for_other_settings_nor_for_a_score_of_the_instance() -> None:
    assert order_of(LFU(half_life=3)) == ()
    policy = LRU()
    policy.score = lambda rows: rows.accesses  # type: ignore[method-assign]
    assert order_of(policy) == ()
    policy = LRU()
    policy.order = ("accesses",)  # no class says that its score does that
    assert order_of(policy) == ()
