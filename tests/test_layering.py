"""The structure of the code: the direction of imports, the absence of circles, and the size of the whole.

Imports are read from the syntax trees, so those within functions count as well as those at the top.
`pytest tests/test_layering.py -s` prints the figures. Who adds beyond a budget takes something away.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "ttm.policy": ROOT / "policy",
    "ttm.datasets": ROOT / "datasets" / "episodes",
    "ttm.sim": ROOT / "sim",
    "ttm.training": ROOT / "training",
    "ttm_policy": ROOT / "ros2_ws" / "src" / "ttm_policy" / "ttm_policy",
}
"""Import name -> folder."""

BELOW = {
    "ttm.policy": set(),
    "ttm.datasets": {"ttm.policy"},
    "ttm.sim": {"ttm.policy", "ttm.datasets"},
    "ttm.training": {"ttm.policy", "ttm.datasets", "ttm.sim"},
    "ttm_policy": {"ttm.policy", "ttm.datasets", "ttm.sim"},
}
"""Package -> the packages that it may import beside itself."""

SHARED_WITH_TRAINING = "ttm_policy.parameters"
"""The one module of the ROS package that others may import: `ttm robot` makes its options from it."""

SIMULATION_AND_ROS = {
    "mujoco", "gymnasium", "gymnasium_robotics", "mink", "rclpy", "launch", "launch_ros",
    "sensor_msgs", "geometry_msgs", "nav_msgs", "std_msgs", "std_srvs", "trajectory_msgs", "diagnostic_msgs",
    "lifecycle_msgs", "rosgraph_msgs", "builtin_interfaces", "rcl_interfaces",
}  # fmt: skip

CODE_FOLDERS = ("policy", "datasets", "sim", "training", "ros2_ws", "launch", "tests")

LAZY_IMPORTS: Mapping[str, str] = {
    "ttm.datasets.tools.play": "Matplotlib takes half a second to import, and simulators film without it",
    "ttm.policy.language": "sentence-transformers takes seconds to import and is often not needed",
    "ttm.policy.export": "ONNX Runtime is an extra",
    "ttm.policy.engines": "OpenVINO is large, and not there for every machine and Python",
    "ttm.training.distributed": "Lightning takes seconds to import, and only a training needs it",
    "ttm.training.run_log": "Lightning takes seconds to import, and only a training needs it",
    "ttm.sim.kitchen.rendering": "importing mujoco fails where EGL is missing, and that is what it tries",
}
"""Modules that may import within functions, and why."""


LINES = {
    "ttm.policy": 7_940,
    "ttm.datasets": 8_954,
    "ttm.sim": 8_308,
    "ttm.training": 12_920,
    "ttm_policy": 13_394,
}
"""Package -> the lines that its files may have together."""
MOST_CODE, MOST_FILES, LEAST_MEDIAN = 35_352, 240, 130
LONGEST_FILE, LONGEST_CHAIN, MOST_SINGLE_IMPORTERS = 900, 14, 60
PLACES_TO_ADD = (
    "ttm.policy.cores.",
    "ttm.datasets.formats.",
    "ttm.datasets.tools.",
    "ttm.sim.tasks.",
    "ttm.training.bench.",
    "ttm.training.study.",
)
"""Prefixes of modules that are added to a table, which alone imports or names them."""


def modules() -> dict[str, Path]:
    """Dotted name -> file, `__init__.py` files left out."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] != "__init__":
                found[".".join([package, *parts])] = path
    assert len(found) > 150, "the folders of the packages have moved"
    return found


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Dotted names of everything that a file imports, at the top or within functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@cache
def graph() -> dict[str, frozenset[str]]:
    """Module -> the modules of the project that it imports."""
    known = modules()
    return {
        module: frozenset(
            target
            for name in imported_names(path)
            for target in (name, name.rpartition(".")[0])
            if target in known and target != module
        )
        for module, path in known.items()
    }


def circles(edges: Mapping[str, set[str] | frozenset[str]]) -> list[list[str]]:
    """Groups of two or more nodes that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def siblings(folder: str) -> dict[str, set[str]]:
    """Module or package directly within the package `folder` -> those of its neighbours that it imports."""
    depth = folder.count(".") + 1

    def child(module: str) -> str | None:
        return ".".join(module.split(".")[: depth + 1]) if module.startswith(folder + ".") else None

    edges: dict[str, set[str]] = {}
    for module, targets in graph().items():
        if (ours := child(module)) is not None:
            others = {child(target) for target in targets} - {ours, None}
            edges.setdefault(ours, set()).update(other for other in others if other is not None)
    return edges


def folders() -> Iterator[str]:
    """Dotted names of all packages that hold modules, at every level."""
    names = {module.rpartition(".")[0] for module in modules()}
    for name in sorted(names):
        while name not in ("", "ttm"):
            yield name
            name = name.rpartition(".")[0]


def package_of(module: str) -> str:
    return next(package for package in PACKAGES if module.startswith(package + "."))


def test_circles_are_found() -> None:
    """The search itself: a chain has none, a loop of three has one."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_module_imports_itself_through_others() -> None:
    assert circles(graph()) == []


@pytest.mark.parametrize("folder", sorted(set(folders())))
def test_no_two_neighbours_in_a_folder_import_each_other(folder: str) -> None:
    """Taken as wholes, the modules and sub-folders of a folder can be put in an order, too."""
    assert circles(siblings(folder)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    for module, targets in graph().items():
        if package_of(module) != package:
            continue
        for target in targets:
            allowed = BELOW[package] | {package}
            if module.startswith("ttm.training.robot."):
                allowed = allowed | ({"ttm_policy"} if target == SHARED_WITH_TRAINING else set())
            assert package_of(target) in allowed, f"{module} imports {target}"


@pytest.mark.parametrize("package", ["ttm.policy", "ttm.datasets"])
def test_policy_and_datasets_know_neither_simulator_nor_ros(package: str) -> None:
    for path in PACKAGES[package].rglob("*.py"):
        used = {name.split(".")[0] for name in imported_names(path)} & SIMULATION_AND_ROS
        assert not used, f"{path.relative_to(ROOT)} imports {used}"


def test_the_simulator_alone_imports_mujoco() -> None:
    """MuJoCo looks for a screen when it is imported, unless `ttm.sim` has told it not to before."""
    importing = {m for m, path in modules().items() if "mujoco" in imported_names(path)}
    assert importing
    assert {module for module in importing if not module.startswith("ttm.sim.")} == set()


def test_no_core_imports_another() -> None:
    """A core is the file in `policy/cores` that an entry of the table names."""
    from ttm.policy.cores.registry import CORES

    prefix = "ttm.policy.cores."
    cores = {
        entry.config.removeprefix(prefix).split(":")[0].split(".")[0] for entry in CORES.values()
    }
    assert {"ttm", "tlb", "hourglass"} <= cores

    def core(module: str) -> str | None:
        """The core that the module belongs to; None for what the cores share, and outside of them."""
        name = module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None
        return name if name in cores else None

    for module, targets in graph().items():
        if (ours := core(module)) is not None:
            others = {core(target) for target in targets} - {ours, None}
            assert not others, f"{module} imports the cores {others}"


def lazy_imports(tree: ast.Module) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    """Imports that do not stand at the top level of a file, with the name of the function around them.

    Those that type checkers alone read are left out.
    """

    def search(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import | ast.ImportFrom) and not isinstance(node, ast.Module):
                yield function, child
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from search(child, child.name if is_function else function)

    yield from search(tree, "")


def test_imports_stand_at_the_top() -> None:
    for module, path in modules().items():
        functions = [name for name, _ in lazy_imports(ast.parse(path.read_text(encoding="utf-8")))]
        if module in LAZY_IMPORTS:
            assert functions, f"{module} has no lazy import any more; take it off the list"
        else:
            assert not functions, f"{module} imports within {functions}"


NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Return the number of lines that hold more than blanks, comments and docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@cache
def files(package: str) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in sorted(PACKAGES[package].rglob("*.py"))}


def importers() -> dict[str, list[str]]:
    """Module -> the modules that import it."""
    found: dict[str, list[str]] = {module: [] for module in modules()}
    for module, targets in graph().items():
        for target in targets:
            found[target].append(module)
    return found


@cache
def chain(module: str) -> int:
    """The number of modules on the longest way of imports that begins at `module`."""
    return 1 + max((chain(target) for target in graph()[module]), default=0)


@pytest.mark.parametrize("package", LINES)
def test_a_package_has_no_more_lines_than_its_budget(package: str) -> None:
    lines = sum(len(text.splitlines()) for text in files(package).values())
    print(f"\n{package}: {len(files(package))} files, {lines} lines of {LINES[package]}")
    assert lines <= LINES[package], (
        f"{package} has {lines} lines; take away what it no longer needs"
    )


def test_the_house_is_small() -> None:
    texts = {path: text for package in PACKAGES for path, text in files(package).items()}
    lines = [len(text.splitlines()) for text in texts.values()]
    code = sum(code_lines(text) for text in texts.values())
    single = [
        module
        for module, by in importers().items()
        if len(by) == 1 and not module.startswith(PLACES_TO_ADD)
    ]
    longest = max(modules(), key=chain)
    print(
        f"\n{len(texts)} files, {sum(lines)} lines, {code} of code, median file "
        f"{statistics.median(lines):.0f}, longest {max(lines)}; longest chain of imports "
        f"{chain(longest)} (from {longest}); {len(single)} modules with one importer"
    )
    assert len(texts) <= MOST_FILES
    assert code <= MOST_CODE
    assert statistics.median(lines) >= LEAST_MEDIAN
    assert max(lines) <= LONGEST_FILE
    assert chain(longest) <= LONGEST_CHAIN
    assert len(single) <= MOST_SINGLE_IMPORTERS, single
