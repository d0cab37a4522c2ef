"""`python -m adaptive`: the same as `adaptive-train`."""

from adaptive.cli.app import main

main()
