# The public names of this package and the modules that define them. `__init__.py` loads each of
# them when it is first used.

from .cores.temporal_core import CoreConfig as CoreConfig
from .cores.temporal_core import TemporalCore as TemporalCore
from .cores.ttm.scenic_weights import load_scenic as load_scenic
from .errors import ObservationError as ObservationError
from .errors import UserError as UserError
from .network.inputs import PolicyInputs as PolicyInputs
from .network.policy import Policy as Policy
from .network.presets import PRESETS as PRESETS
from .network.presets import PolicyConfig as PolicyConfig
from .run.attention_recorder import record_attention as record_attention
from .run.checkpoint import load_checkpoint as load_checkpoint
from .run.checkpoint import save_checkpoint as save_checkpoint
from .run.runner import PolicyRunner as PolicyRunner
from .spec import Action as Action
from .spec import ActionPart as ActionPart
from .spec import CameraSpec as CameraSpec
from .spec import PolicySpec as PolicySpec
from .spec import ProprioceptionSpec as ProprioceptionSpec
