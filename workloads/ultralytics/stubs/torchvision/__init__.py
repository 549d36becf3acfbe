"""What ultralytics needs of torchvision, where no torchvision fits the installed torch: its version and `ops.nms`."""

__version__ = "0.28.0"
from . import ops  # noqa: E402, F401
