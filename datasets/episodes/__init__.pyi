# The public names of this package and the modules that define them. `__init__.py` loads each of
# them when it is first used.

from .dataset import EpisodeDataset as EpisodeDataset
from .dataset import dataset_statistics as dataset_statistics
from .dataset import embed_instructions as embed_instructions
from .dataset import open_dataset as open_dataset
from .description import infer_spec as infer_spec
from .layout import DEFAULT_INSTRUCTION as DEFAULT_INSTRUCTION
from .layout import next_episode_path as next_episode_path
from .reader import EpisodeReader as EpisodeReader
from .samplers import EpisodeSampler as EpisodeSampler
from .samplers import LaneSampler as LaneSampler
from .samplers import WindowSampler as WindowSampler
from .tools.check import check_dataset as check_dataset
from .windows import WindowBatch as WindowBatch
from .windows import WindowDataset as WindowDataset
from .windows import tick_weights as tick_weights
from .writer import EpisodeWriter as EpisodeWriter
from .writer import validate_action as validate_action
