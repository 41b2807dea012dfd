# The public names of this package and the modules that define them. `__init__.py` loads each of
# them when it is first used.

from .action_checks import validate_action as validate_action
from .check.check import check_dataset as check_dataset
from .description import infer_spec as infer_spec
from .episode_dataset import EpisodeDataset as EpisodeDataset
from .episode_dataset import open_dataset as open_dataset
from .episode_reader import EpisodeReader as EpisodeReader
from .episode_writer import EpisodeWriter as EpisodeWriter
from .instructions import embed_instructions as embed_instructions
from .layout import DEFAULT_INSTRUCTION as DEFAULT_INSTRUCTION
from .layout import next_episode_path as next_episode_path
from .statistics import dataset_statistics as dataset_statistics
from .windows.episode_sampler import EpisodeSampler as EpisodeSampler
from .windows.lane_sampler import LaneSampler as LaneSampler
from .windows.sampler import WindowSampler as WindowSampler
from .windows.tick_weights import tick_weights as tick_weights
from .windows.window_dataset import WindowBatch as WindowBatch
from .windows.window_dataset import WindowDataset as WindowDataset
