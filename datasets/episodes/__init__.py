"""Episodes in HDF5: writer, reader, data sets, statistics, checks and training windows.

The names in `__init__.pyi` can be imported from here. They are loaded when they are first used, so
that `import ttm.datasets` needs neither torch nor h5py.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
