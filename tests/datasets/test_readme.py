"""The Python code in datasets/README.md runs as it stands, and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

README = Path(__file__).resolve().parents[2] / "datasets" / "README.md"


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    embed = "ttm.datasets.dataset.embed_instruction"
    monkeypatch.setattr(embed, lambda text: np.zeros(384, np.float32))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    promised = re.findall(r"^print\(.*\)  # (.*)$", "".join(blocks), re.M)
    assert capsys.readouterr().out.splitlines() == promised
    assert (tmp_path / "my_episodes" / "episode_00000.hdf5").is_file()
