"""How many cases explorers, histories, mutations and properties try: few in `make test`, more in .ci/run, most in the
workflow. Tests that ask have the marker `budget`, by which `make test-slow` runs them too."""

from __future__ import annotations

import os

PROFILE = os.environ.get("KAFKAMETA_PROFILE", "fast")


def cases(fast: int, ci: int, slow: int) -> int:
    """The number of this profile."""
    return {"fast": fast, "ci": ci, "slow": slow}[PROFILE]
