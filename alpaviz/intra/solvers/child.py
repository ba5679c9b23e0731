"""The process that runs an integer solver, so that it can be killed: `python child.py FOLDER PARENT`.

Stands alone on purpose: it is run by path, imports nothing of alpaviz (hence no JAX), and starts in a fraction of a
second. Reads `request.pickle` in the folder; writes `progress.pickle` now and then and `answer.pickle` at the end.
What solvers print goes wherever the parent sent it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path, parent: int) -> None:
    """Solve the request in `folder` for the process `parent`, which may be gone before this one has begun."""
    threading.Thread(target=_leave_with_parent, args=(parent, folder), daemon=True).start()
    request = pickle.loads((folder / "request.pickle").read_bytes())
    warnings.simplefilter("ignore")
    try:
        answer = _solve(request, folder)
    except _SolverMissing as error:
        answer = {"status": "missing", "message": str(error)}
    _write(folder / "answer.pickle", answer)


class _SolverMissing(Exception):
    """No integer solver can be run here; the message says which were looked for and where."""


def _solve(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        pulp: Any = importlib.import_module("pulp")
    except ImportError as error:
        raise _SolverMissing(f"PuLP can't be imported ({error}); install it with: pip install pulp highspy") from None
    started = time.monotonic()
    backend, solver_class = _find_backend(pulp, request["backend"])
    model, columns = _build_model(pulp, request)
    limit = request["time_limit"]
    left = None if limit is None else max(0.5, limit - (time.monotonic() - started))
    if backend == "HiGHS":
        answer = _run_highs(pulp, model, columns, request, left, folder)
    else:
        answer = _run_cbc(solver_class, model, columns, request, left, folder)
    return {**answer, "backend": backend}


def _find_backend(pulp: Any, wanted: str) -> tuple[str, Any]:
    """Name and PuLP class of the first solver that is here, of those in `wanted` ("highs", "cbc", comma between)."""
    looked: list[str] = []
    for name in wanted.split(","):
        if name == "highs":
            try:
                import highspy  # noqa: F401

                return "HiGHS", pulp.HiGHS
            except ImportError as error:
                looked.append(f"HiGHS as Python package highspy in {sys.prefix} ({error})")
        if name == "cbc":
            for class_name, place in (("COIN_CMD", f"cbc on PATH ({shutil.which('cbc')})"), ("PULP_CBC_CMD", "PuLP")):
                found = getattr(pulp, class_name, None)
                if found is not None and _is_available(found):
                    return "CBC", found
                looked.append(f"CBC in {place}")
    raise _SolverMissing(f"looked for {'; '.join(looked)}; install one with: pip install highspy")


def _is_available(solver_class: Any) -> bool:
    try:
        return bool(solver_class(msg=False).available())
    except Exception:
        # PuLP raises errors of many kinds for a solver that is not there.
        return False


def _build_model(pulp: Any, request: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The model and its one-hot variables, candidate after candidate of all variables."""
    model = pulp.LpProblem("sharding", pulp.LpMinimize)
    unary, offsets, is_tight = request["unary"], request["offsets"], request["form"] == "tight"
    picks = [model.add_variable(f"s{i}", 0, 1, pulp.LpInteger) for i in range(len(unary))]
    terms = [(x, float(c)) for x, c in zip(picks, unary, strict=True) if c != 0.0]
    rows: list[Any] = [pulp.lpSum(picks[offsets[v] : offsets[v + 1]]) == 1 for v in range(len(offsets) - 1)]
    for number, (u, v, cost) in enumerate(request["edges"]):
        pairs = [[None] * cost.shape[1] for _ in range(cost.shape[0])]
        for a, b in zip(*np.nonzero(np.isfinite(cost)), strict=True):
            kind = pulp.LpContinuous if is_tight else pulp.LpInteger
            x = pairs[a][b] = model.add_variable(f"e{number}_{a}_{b}", 0, None if is_tight else 1, kind)
            if cost[a, b] != 0.0:
                terms.append((x, float(cost[a, b])))
        at_u, at_v = picks[offsets[u] : offsets[u + 1]], picks[offsets[v] : offsets[v + 1]]
        rows += _tie_pairs(pulp, pairs, at_u, at_v, is_tight)
    for usage, limit in zip(request["usage"], request["limits"], strict=True):
        used = [float(c) * x for x, c in zip(picks, usage, strict=True) if c != 0.0]
        if used:
            rows.append(pulp.lpSum(used) <= float(limit))
    # PuLP wants an objective with a variable in it.
    model += pulp.lpSum([c * x for x, c in terms]) if terms else 0.0 * picks[0]
    for row in rows:
        model += row
    return model, picks


def _tie_pairs(pulp: Any, pairs: list[list[Any]], at_u: list[Any], at_v: list[Any], is_tight: bool) -> list[Any]:
    """Rows that tie an edge's pair variables to the picks of its ends.

    Tight: sums over a row or column equal the pick. As published (Alpa, section 4.2): they are at most the pick, and
    one pair is taken.
    """
    rows = []
    for x, line in [*zip(at_u, pairs, strict=True), *zip(at_v, zip(*pairs, strict=True), strict=True)]:
        total = pulp.lpSum([p for p in line if p is not None])
        rows.append(total - x == 0 if is_tight else total - x <= 0)
    if not is_tight:
        rows.append(pulp.lpSum([p for line in pairs for p in line if p is not None]) == 1)
    return rows


def _run_highs(
    pulp: Any, model: Any, picks: list[Any], request: dict[str, Any], left: float | None, folder: Path
) -> dict[str, Any]:
    import highspy

    columns = _find_columns(model, picks)
    state: dict[str, Any] = {"choice": None, "objective": float("inf"), "bound": -float("inf"), "written": 0.0}

    def listen(kind: Any, message: str, found: Any, back: Any, data: Any) -> None:
        state["bound"] = max(state["bound"], float(found.mip_dual_bound))
        if kind == highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution:
            state["choice"] = _read_choice(np.asarray(found.mip_solution)[columns], request["offsets"])
            state["objective"] = float(found.mip_primal_bound)
        if time.monotonic() - state["written"] > 0.1:
            state["written"] = time.monotonic()
            _write(folder / "progress.pickle", {k: state[k] for k in ("choice", "objective", "bound")})

    kinds = highspy.cb.HighsCallbackType
    options = {"primal_feasibility_tolerance": 1e-9, "mip_feasibility_tolerance": 1e-9}
    solver = pulp.HiGHS(
        msg=False,
        timeLimit=left,
        gapRel=request["tolerance"],
        gapAbs=0.0,
        callbackTuple=(listen, None),
        callbacksToActivate=[kinds.kCallbackMipImprovingSolution, kinds.kCallbackMipLogging],
        **options,
    )
    model.solve(solver)
    highs = model.solverModel
    status, info = highs.getModelStatus(), highs.getInfo()
    names = highspy.HighsModelStatus
    if status in (names.kInfeasible, names.kUnboundedOrInfeasible):
        return {"status": "infeasible"}
    # Values are meaningless unless the solver says that they are a solution.
    has_choice = status == names.kOptimal or info.primal_solution_status == 2
    values = np.asarray(highs.getSolution().col_value)
    choice = _read_choice(values[columns], request["offsets"]) if has_choice else None
    bound = float(info.mip_dual_bound)
    return {"status": "optimal" if status == names.kOptimal else "stopped", "choice": choice, "bound": bound}


def _run_cbc(
    solver_class: Any, model: Any, picks: list[Any], request: dict[str, Any], left: float | None, folder: Path
) -> dict[str, Any]:
    log = folder / "cbc.log"
    os.environ["TMPDIR"] = os.environ["TEMP"] = os.environ["TMP"] = str(folder)
    solver = solver_class(
        msg=False, timeLimit=left, gapRel=request["tolerance"], gapAbs=0.0, logPath=str(log), threads=None
    )
    solver.tmpDir = str(folder)
    outcome = model.solve(solver)
    if hasattr(outcome, "has_solution"):  # PuLP 4
        status, has_choice = outcome.status.name, bool(outcome.has_solution)
    else:
        status = {1: "Optimal", 2: "TimeLimit", -1: "Infeasible", -2: "Infeasible"}.get(model.sol_status, "Stopped")
        has_choice = model.sol_status in (1, 2)
    if status == "Infeasible":
        return {"status": "infeasible"}
    values = np.array([x.varValue for x in picks], dtype=float) if has_choice else None
    choice = None if values is None else _read_choice(values, request["offsets"])
    is_optimal = status == "Optimal" and choice is not None
    status = "optimal" if is_optimal else "stopped"
    return {"status": status, "choice": choice, "bound": _read_cbc_bound(log, is_optimal)}


def _read_cbc_bound(log: Path, is_optimal: bool) -> float:
    if is_optimal:
        return float("inf")
    text = log.read_text(errors="replace") if log.exists() else ""
    found = re.findall(r"(?:Lower bound:|best possible)\s+(-?[\d.]+(?:e[+-]?\d+)?)", text)
    return float(found[-1]) if found else -float("inf")


def _find_columns(model: Any, picks: list[Any]) -> Any:
    """Column of each pick, in the order in which PuLP hands variables to HiGHS."""
    ordered = model.exported_variables() if hasattr(model, "exported_variables") else model.variables()
    place = {x.name: i for i, x in enumerate(ordered)}
    return np.array([place[x.name] for x in picks])


def _read_choice(values: Any, offsets: Any) -> list[int]:
    return [int(np.argmax(values[a:b])) for a, b in itertools.pairwise(offsets)]


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all: the parent may read at any time."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(pickle.dumps(content))
    draft.replace(path)


def _leave_with_parent(parent: int, folder: Path) -> None:
    """A kernel that is killed must leave no solver behind, CBC's own process and this folder included."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
