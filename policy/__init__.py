"""The policy: network, memory, and what runs it. It depends on neither ROS nor MuJoCo.

The names in `__init__.pyi` can be imported from here. Their modules, and with them PyTorch, are
imported when a name is first used.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
