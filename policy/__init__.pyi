# The public names of this package and the modules that define them. `__init__.py` loads each of
# them when it is first used.

from .actor import Actor as Actor
from .actor import ActorRunner as ActorRunner
from .actor import Runner as Runner
from .actor import load_runner as load_runner
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .cores.core import CoreConfig as CoreConfig
from .cores.core import TemporalCore as TemporalCore
from .cores.scenic import load_scenic as load_scenic
from .errors import ObservationError as ObservationError
from .errors import UserError as UserError
from .export import export_policy as export_policy
from .inputs import PolicyInputs as PolicyInputs
from .language import embed_instruction as embed_instruction
from .memory_attention import record_attention as record_attention
from .policy import PRESETS as PRESETS
from .policy import Policy as Policy
from .policy import PolicyConfig as PolicyConfig
from .runner import PolicyRunner as PolicyRunner
from .spec import Action as Action
from .spec import ActionPart as ActionPart
from .spec import CameraSpec as CameraSpec
from .spec import PolicySpec as PolicySpec
from .spec import ProprioceptionSpec as ProprioceptionSpec
