"""One target under atheris, which never returns: run by `tests.fuzz`, in a process of its own."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["headwater"]):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets[sys.argv[1]])
    atheris.Fuzz()
