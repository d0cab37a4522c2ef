"""Slipstream (Maboud et al., arXiv 2404.04270): skip what has stopped changing. Its abstract is public.

Here, `--policy slipstream` next to FAE and Hotline, which it is measured against, and to `lfu+skip=predicted`, which
leaves out inputs that a cheap prediction has right. All read the same samples; controls drop as many at random. Of the
samples 3% are clicks, as in Criteo's terabyte: at 22% a prediction leaves out a fifth, for a tenth of the time.

Measured on an H100 on 26 November 2026, a tenth of the rows on the device: placement alone (`lru` over `hybrid`, which
is DLRM with its tables on the host) is 3.1 times as fast, where the paper has 2.4 for placement and skipping together.

Run: python examples/papers/slipstream.py [--quick]        (minutes on two cores)
"""

from common import RMC2, Claim, compare, is_quick, show, stream

SKIPPING = ("slipstream", "lfu+skip=predicted")


def claims_of(policies):
    """Return the claims of the abstract, for both rules that skip."""
    no_link = "without a GPU no link is in the way of cold inputs, so time falls only by the work that is left out"
    for name in SKIPPING:
        ours = policies[name]
        for other, ratio in (("hybrid", 2.4), ("fae", 1.2), ("hotline", 1.175)):
            yield Claim(
                f"skipping ({name}) is {ratio:g} times as fast as {other.replace('hybrid', 'DLRM')} (abstract)",
                ratio,
                ours["samples_per_s"] / policies[other]["samples_per_s"],
                "gain",
                no_link,
            )
        yield Claim(
            f"accuracy hardly changes: AUC of {name} is the control's within 0.001",
            0.001,
            ours["auc"] - policies["hybrid"]["auc"],
            "within",
            "a short run: compare more samples and seeds",
        )
        if ours["auc_difference_to_random"] is not None:
            yield Claim(
                f"{name} loses less AUC than as many inputs dropped at random",
                0.0,
                ours["auc_difference_to_random"],
                ">",
                "a short run: compare more samples and seeds",
            )


def main():
    quick = is_quick(__doc__)
    size = "--steps 160 --batch-size 256" if quick else "--steps 190"
    policies = compare(
        f"--policies hybrid,fae,hotline,{','.join(SKIPPING)} --seeds 1 {RMC2} {stream(quick, 0.03)} {size}"
    )
    for name in SKIPPING:
        inputs, updates = (policies[name][f"skipped_{kind}_share"] for kind in ("input", "update"))
        print(f"{name}: {inputs:.1%} of the inputs and {updates:.1%} of the row updates were left out or deferred")
    show(
        "Slipstream: skip what has stopped changing",
        list(claims_of(policies)),
        ["2 times the speed of XDL: a parameter server, which dlrm_xdl.py counts and does not run"],
    )


if __name__ == "__main__":
    main()
