"""Placement policies and skip rules, installed as `adaptive.policies`: one policy, one paper, one file."""

if __name__ == "policies":  # by its former name, from a checkout, before anything else of adaptive was imported
    import sys

    import adaptive.policies

    sys.modules[__name__] = adaptive.policies
