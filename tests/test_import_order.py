"""Imports go one way, JAX is imported in few places, and `import alpaviz` brings almost nothing."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import alpaviz

ROOT = Path(alpaviz.__file__).parent

ORDER: tuple[tuple[str, ...], ...] = (
    ("types", "errors", "pins"),
    ("cluster",),
    ("plan",),  # only dataclasses, which the solver fills too
    ("program",),
    ("cost",),
    ("intra",),
    ("inter",),
    ("schedule",),
    ("plan_*",),
    (
        "pin_specs",
        "planner_state",
        "planner_history",
        "alternatives",
        "stage_variants",
        "stage_cache",
        "solver_pool",
        "planner_options",
        "pin_checks",
        "stage_recomputation",
        "memory_advice",
        "stage_candidates",
        "planning",
        "microbatch_search",
        "solve_handle",
        "sweep",
        "planner",
    ),
    ("baselines",),
    ("widget",),
    ("runtime",),
    ("calibration",),
    ("verify",),
    ("models",),
    ("lab",),
    ("cli",),
    ("__main__",),
)
"""Modules and packages from the first to the last; each may import its own row and those above. `*` ends a prefix."""

MAY_IMPORT_JAX = ("program", "runtime", "calibration", "models")
HEAVY = (
    "jax", "jaxlib", "numpy", "msgspec", "plotly", "ray", "anywidget", "ipywidgets", "highspy", "pulp", "jupyterlab",
)  # fmt: skip


@functools.cache
def list_modules() -> dict[str, Path]:
    """Dotted name, without `alpaviz.`, of every module but the facade; packages by their folder."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


@functools.cache
def list_imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of what `path` imports when it is loaded."""
    return tuple(_walk_imports(ast.parse(path.read_text(encoding="utf-8")).body))


def _walk_imports(statements: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for statement in statements:
        match statement:
            case ast.Import(names=names):
                yield from ((statement.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0, f"line {statement.lineno}: a relative import"
                for alias in names:
                    is_module = f"{module}.{alias.name}".removeprefix("alpaviz.") in list_modules()
                    yield statement.lineno, f"{module}.{alias.name}" if is_module else module or ""
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                yield from _walk_imports(orelse)
            case ast.If(body=body, orelse=orelse) | ast.Try(body=body, orelse=orelse):
                yield from _walk_imports(body + orelse)
            case _:
                pass


def find_rank(module: str) -> int:
    """Row of `ORDER` that a module, named without `alpaviz.`, belongs to."""
    top = module.split(".")[0]
    for rank, row in enumerate(ORDER):
        if any(top == name or (name.endswith("*") and top.startswith(name[:-1])) for name in row):
            return rank
    raise AssertionError(f"alpaviz.{top} has no place in ORDER of {Path(__file__).name}: add it where it belongs.")


def list_own_imports(module: str) -> Iterator[tuple[int, str]]:
    """(line, module without `alpaviz.`) of imports from this package; the facade is left out."""
    for line, name in list_imports(list_modules()[module]):
        if name.startswith("alpaviz."):
            yield line, name.removeprefix("alpaviz.")


@pytest.mark.parametrize("module", list_modules())
def test_a_module_imports_only_from_its_row_and_above(module: str) -> None:
    wrong = [
        f"line {line} imports alpaviz.{other}"
        for line, other in list_own_imports(module)
        if find_rank(other) > find_rank(module)
    ]
    assert not wrong, f"alpaviz.{module}: {'; '.join(wrong)}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    sorter = TopologicalSorter(
        {
            module: {other for _, other in list_own_imports(module) if other in list_modules()}
            for module in list_modules()
        }
    )
    sorter.prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(("package", "other"), [("runtime", "widget"), ("widget", "runtime")])
def test_runtime_and_widget_never_import_each_other(package: str, other: str) -> None:
    for module, path in list_modules().items():
        if module.split(".")[0] == package:
            tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            imported = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
            assert not [name for name in imported if name.startswith(f"alpaviz.{other}")], module


def test_only_the_version_is_taken_from_the_facade() -> None:
    for module, path in list_modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "alpaviz":
                names = {alias.name for alias in node.names}
                assert names <= {"__version__", *list_modules()}, f"alpaviz.{module}, line {node.lineno}: {names}"


def test_jax_is_imported_only_where_it_is_traced_run_or_modelled() -> None:
    importers = {
        module.split(".")[0]
        for module, path in list_modules().items()
        if any(name.split(".")[0] in ("jax", "jaxlib") for _, name in list_imports(path))
    }
    assert importers <= set(MAY_IMPORT_JAX)


def import_in_new_process(statement: str) -> set[str]:
    """Which heavy packages, `threads` among them where a thread was started, `statement` brings."""
    code = (
        f"import sys, threading\n{statement}\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])\n"
        "print('threads' if threading.active_count() > 1 else '')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    return set(result.stdout.split())


def test_importing_the_package_brings_nothing_heavy() -> None:
    assert import_in_new_process("import alpaviz") == set()


def test_plan_files_open_without_jax() -> None:
    statement = (
        "from alpaviz import load_plan, compare_plans, validate_plan; import alpaviz.plan_text, alpaviz.plan_figures"
    )
    assert import_in_new_process(statement) <= {"msgspec"}


def test_every_public_name_is_found() -> None:
    missing = [name for name in alpaviz.__all__ if not hasattr(alpaviz, name)]
    assert missing == []
