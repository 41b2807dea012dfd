"""Files whose groups, links, types and attributes are not as they should be."""

from __future__ import annotations

import json
from typing import Any

import h5py
import numpy as np
import pytest

from ttm.policy import ActionPart, PolicySpec
from ttm.training.cli import main

TICKS = 6
X = ActionPart("x", 3, "m")
FIRST, DEMO = "data/demo_0", "data/demo_1"


def put(key: str, values: Any, demo: str = DEMO, **options: Any):
    """Replace a dataset of a demo: the second one by default, so that the first one is whole."""

    def change(file: Any) -> None:
        if key in file[demo]:
            del file[demo][key]
        if values is not None:
            file[demo].create_dataset(key, data=values, **options)

    return change


def declare(key: str, shape: tuple[int, ...], dtype: Any, **options: Any):
    """Replace a dataset by one of which nothing is written."""

    def change(file: Any) -> None:
        del file[DEMO][key]
        file[DEMO].create_dataset(key, shape, dtype, **options)

    return change


def link(key: str, target: Any):
    def change(file: Any) -> None:
        if key in file:
            del file[key]
        file[key] = target

    return change


def attribute(place: str, name: str, value: Any):
    return lambda file: file[place].attrs.__setitem__(name, value)


def half_written(file: Any) -> None:
    del file[DEMO]["obs/front"]
    frames = file[DEMO].create_dataset("obs/front", (TICKS, 8, 8, 3), np.uint8, chunks=(1, 8, 8, 3))
    frames[:3] = 7


def unknown_filter(file: Any) -> None:
    """Write a chunk as a program that has Blosc would."""
    del file[DEMO]["actions"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((TICKS, 3))
    plist.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (2, 2, 8, 144))
    space = h5py.h5s.create_simple((TICKS, 3))
    made = h5py.h5d.create(file[DEMO].id, b"actions", h5py.h5t.NATIVE_DOUBLE, space, plist)
    h5py.Dataset(made).id.write_direct_chunk((0, 0), bytes(TICKS * 3 * 8), 0)


def references(file: Any) -> None:
    values = np.array([[file[DEMO].ref] * 3] * TICKS, dtype=object)
    del file[DEMO]["actions"]
    file[DEMO].create_dataset("actions", data=values, dtype=h5py.ref_dtype)


def named_type(file: Any) -> None:
    file["data/type"] = np.dtype("f8")


def mask(values: Any):
    return lambda file: file.create_dataset("mask/train", data=values)


COMPOUND = np.zeros((TICKS, 3), dtype=[("x", "f4"), ("y", "f4")])
CHUNKS = {"chunks": (2**26, 3), "maxshape": (None, 3), "compression": "gzip"}
NESTED = "[" * 100_000

REFUSED = {
    "actions missing": (put("actions", None), "actions is missing"),
    "instruction too long": (
        attribute(DEMO, "language_instruction", "pick up " * 7000),
        "language_instruction has 56000 characters, and at most 1000 are taken",
    ),
    "mask of too many names": (
        lambda file: file.create_dataset("mask/train", (2**33,), "S8", chunks=(2**16,)),
        "mask/train has 8589934592 names",
    ),
    "rate of 400 digits in the spec": (
        attribute(
            "data", "ttm_spec", PolicySpec("arm", (), (), (X,), 5).to_json()[:-2] + "5" * 400 + "}"
        ),
        "give a finite control rate",
    ),
    "embedding of 200 GiB": (
        lambda file: file[DEMO].create_dataset("language_embedding", (50 * 2**30,), "f4"),
        "language_embedding has 53687091200 values",
    ),
    "task too long": (attribute(DEMO, "task", "x" * 1001), "task has 1001 characters"),
    "actions a scalar": (put("actions", 1.0), "array of numbers of shape (T, A)"),
    "actions without shape": (put("actions", h5py.Empty("f4")), "array of numbers of shape (T, A)"),
    "actions 1-D": (put("actions", np.zeros(TICKS)), "array of numbers of shape (T, A)"),
    "actions 3-D": (put("actions", np.zeros((TICKS, 3, 1))), "array of numbers of shape (T, A)"),
    "actions transposed": (put("actions", np.zeros((3, TICKS))), "has shape (3, 6)"),
    "actions without dimension": (put("actions", np.zeros((TICKS, 0))), "no dimension"),
    "actions without tick": (put("actions", np.zeros((0, 3))), "ticks"),
    "actions texts": (put("actions", np.full((TICKS, 3), b"a")), "array of numbers"),
    "actions compound": (put("actions", COMPOUND), "array of numbers"),
    "actions complex": (put("actions", np.zeros((TICKS, 3), complex)), "array of numbers"),
    "actions references": (references, "array of numbers"),
    "actions too long": (put("actions", np.zeros((TICKS + 1, 3))), "6 ticks, actions 7"),
    "actions a group": (link(f"{DEMO}/actions", h5py.SoftLink("/data")), "array of numbers"),
    "huge and empty": (declare("actions", (10**12, 3), "f8", chunks=(1024, 3)), "GiB"),
    "never written": (declare("actions", (TICKS, 3), "f8"), "none of its values were written"),
    "half written": (half_written, "only 3 of 6 chunks were written"),
    "chunk bomb": (declare("actions", (TICKS, 3), "f8", **CHUNKS), "its chunks unpack to 1.5 GiB"),
    "unknown filter": (unknown_filter, "compressed by blosc, which is not installed"),
    "obs missing": (put("obs", None), "no group obs"),
    "obs a dataset": (put("obs", np.zeros(3)), "no group obs"),
    "camera missing": (put("obs/front", None), "obs/front is missing"),
    "camera missing in the first": (put("obs/front", None, FIRST), "obs/front is missing"),
    "camera texts in the first": (
        put("obs/front", np.full(TICKS, b"front.png"), FIRST),
        "obs/front has shape (6,), not (T, 8, 8, 3)",
    ),
    "camera of another size": (
        put("obs/front", np.zeros((TICKS, 9, 8, 3), np.uint8)),
        "obs/front has shape (6, 9, 8, 3), not (T, 8, 8, 3",
    ),
    "camera of another type": (
        put("obs/front", np.zeros((TICKS, 8, 8, 3), np.uint16)),
        "obs/front holds uint16 frames",
    ),
    "camera too long": (
        put("obs/front", np.zeros((7, 8, 8, 3), np.uint8)),
        "has 7 ticks, actions 6",
    ),
    "vector of texts": (put("obs/joints", np.full((TICKS, 2), b"a")), "obs/joints holds |S1"),
    "vector too short": (put("obs/joints", np.zeros((5, 2))), "obs/joints has 5 ticks, actions 6"),
    "executed actions too short": (put("executed_actions", np.zeros((5, 3))), "has 5 ticks"),
    "interventions too short": (put("interventions", np.ones(5, np.uint8)), "has 5 ticks"),
    "interventions of fractions": (
        put("interventions", np.full(TICKS, np.nan)),
        "interventions holds float64, not whole numbers",
    ),
    "timestamps of texts": (put("timestamps", np.full(TICKS, b"a")), "timestamps holds |S1"),
    "timestamps a scalar": (put("timestamps", 1.0), "timestamps is not a dataset of one row"),
    "loss weights of texts": (put("loss_weights", np.full(TICKS, b"a")), "loss_weights"),
    "demo a dataset": (link("data/demo_2", np.zeros(3)), "data/demo_2 is not a group"),
    "demo a type": (named_type, "data/type is not a group"),
    "demo a link to nothing": (link("data/demo_2", h5py.SoftLink("/no")), "is not a group"),
    "demo with an odd name": (
        lambda file: h5py.h5g.create(file["data"].id, b"\xff\xfe"),
        "has a name that cannot be printed",
    ),
    "member with an odd name": (
        lambda file: file["data/demo_0"].copy("obs/joints", file["data/demo_0/obs"], "a\nb"),
        "cannot be printed; rename it",
    ),
    "soft links in a loop": (
        link(f"{DEMO}/actions", h5py.SoftLink(f"/{DEMO}/actions")),
        "actions is a loop of soft links",
    ),
    "masks a dataset": (lambda file: file.create_dataset("mask", data=[1]), "mask is not a group"),
    "mask of numbers": (mask([1, 2]), "mask/train does not hold names of demos"),
    "instruction a number": (
        attribute(DEMO, "language_instruction", 3.5),
        "language_instruction is 3.5, and not one text",
    ),
    "instruction two texts": (
        attribute(DEMO, "language_instruction", ["pick", "up"]),
        "and not one text",
    ),
    "spec no JSON": (attribute("data", "ttm_spec", "{"), "not a PolicySpec in JSON"),
    "spec a list": (attribute("data", "ttm_spec", "[1]"), "not a PolicySpec in JSON"),
    "spec nested deeply": (attribute("data", "ttm_spec", NESTED[:30_000]), "not a PolicySpec"),
    "rates that differ": (
        attribute("data", "env_args", json.dumps({"env_kwargs": {"control_freq": 20}})),
        "control_freq",
    ),
}

READ = {
    "actions of whole numbers": put("actions", np.ones((TICKS, 3), np.int16)),
    "actions true or false": put("actions", np.ones((TICKS, 3), bool)),
    "interventions true or false": put("interventions", np.ones(TICKS, bool)),
    "interventions of large numbers": put("interventions", np.full(TICKS, 256)),
    "actions in another byte order": put("actions", np.ones((TICKS, 3), ">f8")),
    "actions in half precision": put("actions", np.ones((TICKS, 3), np.float16)),
    "actions at the end of soft links": link(
        f"{DEMO}/actions", h5py.SoftLink("/data/demo_0/actions")
    ),
    "a group that holds itself": lambda file: file["data/demo_0"].__setitem__(
        "again", file["data/demo_0"]
    ),
    "a member that leads nowhere": link("data/demo_0/obs/x", h5py.SoftLink("/no")),
    "a member with dots": link("data/demo_1/obs/a.b..c", np.zeros((TICKS, 2))),
    "a member of 1-D": link("data/demo_1/obs/gripper", np.zeros(TICKS)),
    "a mask of one text": mask("demo_0"),
    "env_args no JSON": attribute("data", "env_args", "{nonsense"),
    "env_args nested deeply": attribute("data", "env_args", NESTED[:30_000]),
    "control_freq a text": attribute(
        "data", "env_args", '{"env_kwargs": {"control_freq": "fast"}}'
    ),
    "control_freq below 0": attribute("data", "env_args", '{"env_kwargs": {"control_freq": -5}}'),
    "seed a text": attribute(DEMO, "seed", "lucky"),
    "success an array": attribute(DEMO, "success", np.array([1, 0])),
    "instruction not UTF-8": attribute(DEMO, "language_instruction", np.bytes_(b"caf\xe9")),
    "instruction of odd characters": lambda file: file[DEMO].attrs.create(
        "language_instruction", b"caf\xe9", dtype=h5py.string_dtype()
    ),
    "instruction half a pair": attribute(DEMO, "ep_meta", '{"lang": "\\ud800"}'),
    "robot half a pair": attribute("data", "env_args", '{"env_name": "\\ud800"}'),
    "instruction an array of one text": attribute(DEMO, "language_instruction", ["pick up"]),
    "instruction blank": attribute(DEMO, "language_instruction", " \t"),
    "instruction of two lines": attribute(DEMO, "language_instruction", "pick up\nthe mug\n"),
    "instruction with ESC": attribute(DEMO, "language_instruction", "pick \x1b[2Jup"),
    "control_freq of 400 digits": attribute(
        "data", "env_args", json.dumps({"env_kwargs": {"control_freq": 10**400}})
    ),
    "timestamps 1e-310 apart": put("timestamps", np.arange(TICKS) * 1e-310),
    "ep_meta no JSON": attribute(DEMO, "ep_meta", "{"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_told_in_one_line(small_file, answer, case: str) -> None:
    change, words = REFUSED[case]
    path = small_file(change)
    if case == "rates that differ":
        other = attribute("data", "env_args", json.dumps({"env_kwargs": {"control_freq": 10}}))
        path = small_file(other, name="b.hdf5", seed=1).parent
    found = answer(path)
    assert found.fails
    assert words in found.faults or words in (found.refusal or "")


@pytest.mark.parametrize("case", READ)
def test_what_can_be_read_is_read(small_file, answer, case: str) -> None:
    found = answer(small_file(READ[case]))
    assert found.refusal is None
    assert len(found.episodes) == 2


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("instruction an array of one text", "pick up"),
        ("instruction blank", ""),
        ("instruction of two lines", "pick up the mug"),
        ("instruction with ESC", "pick \ufffd[2Jup"),
    ],
)
def test_an_instruction_is_its_text(small_file, answer, case: str, text: str) -> None:
    found = answer(small_file(READ[case]))
    assert found.episodes[1].instruction == text
    assert ("1 episodes have no instruction" in found.episodes.note) == (text == "")


def test_no_text_of_a_file_is_a_command_of_the_terminal(small_file, tmp_path, capsys) -> None:
    """Nor fills it, wherever in the file it stands."""
    text = "\n\x1b]0;stolen\x07\x1b[2J\x9b1m" + "\u202edet" * 20_000
    places = [(DEMO, "language_instruction"), (DEMO, "task"), (DEMO, "success"), (DEMO, "seed")]
    changes = [attribute(*place, text[:15_000]) for place in places]
    changes.append(attribute(DEMO, "ep_meta", json.dumps({"lang": text[:5000]})))
    changes.append(attribute("data", "env_args", json.dumps({"env_name": text[:5000], "type": 2})))
    changes.append(attribute("data", "ttm_spec", text[:15_000]))
    changes.append(
        lambda file: file[DEMO].create_dataset(f"obs/{text[:9000]}", data=np.ones((6, 2)))
    )
    changes.append(lambda file: file["data"].copy("demo_0", text[:9000].replace("/", "")))
    for number, change in enumerate(changes):
        path = str(small_file(change, name=f"{number}.hdf5"))
        training = ["train", "--data", path, "--out", str(tmp_path / "run"), "--dry-run"]
        training += ["--batch-size", "1"]
        converting = ["data", "convert", path, str(tmp_path / f"out_{number}")]
        for words in (["data", "show", path], ["data", "check", path], training, converting):
            assert main(words) in ((0, 2) if words is converting else (0, 1, 2))
            told = "".join(capsys.readouterr())
            assert not set(told) & {"\x1b", "\x07", "\x9b", "\u202e"}
            assert len(told) < 12_000


def test_a_vector_that_some_demos_lack_is_told(small_file, answer) -> None:
    found = answer(small_file(put("obs/joints", None, FIRST)))
    assert found.refusal is None
    assert found.episodes.spec.proprioception == ()
    assert "obs/joints is not in every demo, and is not used" in found.faults


def test_cameras_that_all_have_can_be_chosen(small_file, answer) -> None:
    path = small_file(put("obs/side", np.zeros((TICKS, 8, 8, 3), np.uint8)))
    assert "data/demo_0/obs/side is missing" in answer(path).refusal
    found = answer(path, cameras=("front",))
    assert found.refusal is None
    assert [camera.name for camera in found.episodes.spec.cameras] == ["front"]


@pytest.mark.parametrize("value", ["six", np.array([6, 6]), 5])
def test_a_wrong_number_of_samples_is_a_fault(small_file, answer, value: Any) -> None:
    found = answer(small_file(attribute(DEMO, "num_samples", value)))
    assert found.fails
    assert "num_samples says" in found.faults


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("seed a text", "attribute seed is lucky"),
        ("success an array", "attribute success is [1 0]"),
        ("instruction not UTF-8", "its instruction is not UTF-8 text"),
        ("instruction of odd characters", "its instruction is not UTF-8 text"),
    ],
)
def test_facts_that_are_not_understood_are_warnings(
    small_file, answer, case: str, words: str
) -> None:
    found = answer(small_file(READ[case]))
    assert not found.fails
    assert words in found.faults


def test_a_mask_of_missing_demos_is_a_fault(small_file, answer) -> None:
    found = answer(small_file(mask([b"demo_0", b"demo_7"])))
    assert "mask/train names it, but it is not there" in found.faults


@pytest.mark.parametrize(
    "embedding", [np.zeros(7), np.full(384, np.nan), np.full(384, 1e30), np.zeros((2, 384))]
)
def test_an_embedding_of_another_kind_is_a_fault(small_file, answer, embedding: Any) -> None:
    found = answer(small_file(put("language_embedding", embedding)))
    assert found.fails
    assert "language_embedding has shape" in found.faults
