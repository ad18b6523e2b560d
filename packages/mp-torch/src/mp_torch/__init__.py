"""Send torch's CPU tensors between processes through mp-core's shared memory, with torch's semantics.

    mp_torch.install()        tensors, Parameters and storages travel in blocks from now on; DataLoader too

Importing this package changes nothing, and does not import torch.
"""

from mp_core._version import __version__ as __version__
from mp_torch._install import init_reductions, install

__all__ = ["init_reductions", "install"]
