"""Python imports this at start-up because its folder is first on PYTHONPATH. It loads parity by place (nothing of ours
becomes importable by accident), arms the hooks, and then runs the sitecustomize that it hides, if there is one.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _load():
    import importlib.util

    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec: Any = importlib.util.spec_from_file_location(
        "parity", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module
    spec.loader.exec_module(module)
    from parity.hooks import install

    install.arm()


def _chain():
    """Run the next sitecustomize on the path."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("PARITY") == "1":
    try:
        _load()
    except Exception as error:
        print("parity: not recording: %s: %s" % (type(error).__name__, error), file=sys.stderr)
_chain()
