"""How does a worker start on a Python that need not know wherry?

    python .../stub/__main__.py SOURCE TARGET SLAB PARENT

This folder becomes a package of its own, under a name that no model uses.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback

_NAME = "_wherry_stub"


def _start() -> None:
    numbers = [int(number) for number in sys.argv[1:]]
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.remove(sys.path[0])  # this folder, which the model must not import from
    try:
        if sys.version_info < (3, 8):  # noqa: UP036 - it may be any
            raise ImportError("Python 3.8 or later is needed, this is " + sys.version.split()[0])
        spec = importlib.util.spec_from_file_location(
            _NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = package
        spec.loader.exec_module(package)
        worker = importlib.import_module(_NAME + ".worker")
    except ImportError as error:
        traceback.print_exc()
        sys.stderr.write(
            "\n%s cannot run a Python model: %s. It must be Python 3.8 or later with numpy.\n"  # noqa: UP031 - must parse on old versions
            % (sys.executable, error)
        )
        sys.exit(3)
    worker.main(*numbers)


if __name__ == "__main__":
    _start()
