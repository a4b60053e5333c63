"""MORI: symmetric memory for GPUs and CPUs. Everything is in `mori.shmem`."""

from mori import shmem
from mori._core import version as _version

__all__ = ["__version__", "shmem"]

__version__: str = _version()
