# The public names of this package and the modules that define them. `__init__.py` loads each of
# them when it is first used.

from .environment import PolicyEnv as PolicyEnv
from .environment import make_env as make_env
from .evaluation import evaluate as evaluate
from .kitchen_env import KitchenEnv as KitchenEnv
from .results import Evaluation as Evaluation
from .results import load_evaluation as load_evaluation
from .tasks.table import TASK_NAMES as TASK_NAMES
