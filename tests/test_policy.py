"""`arranges`: one answer to whether a policy makes batches of its own, for instances and classes."""

from adaptive.policy import arranges
from policies.hotline import Hotline
from policies.lru import LRU


def test_a_policy_arranges_if_it_or_its_class_has_an_arrange_of_its_own() -> None:
    assert not arranges(LRU) and not arranges(LRU())
    assert arranges(Hotline) and arranges(Hotline())


def test_an_instance_that_is_given_an_arrange_arranges() -> None:
    policy = LRU()
    policy.arrange = lambda batches, view: batches  # type: ignore[method-assign]
    assert arranges(policy) and not arranges(LRU)
