"""Where a test finds all tests that its run has found."""

from __future__ import annotations

import pytest

all_tests = pytest.StashKey[list[pytest.Item]]()
"""Also those that were not asked for."""
