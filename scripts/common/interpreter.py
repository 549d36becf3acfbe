"""`python` in a rule is the interpreter that runs Snakemake, whether its environment was activated or not."""

import os
import sys
from pathlib import Path


def prefer_own() -> None:
    """Put this interpreter's folder first on the PATH of every process that this one starts."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
