"""Lets the marker of pytest-xdist be used whether or not it is installed."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker runs, in turn")
