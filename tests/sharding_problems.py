"""Sharding problems for tests and benchmarks: small random ones for hypothesis, and training steps of any size.

`make_training_step` lays out the graph that a transformer's training step gives: a forward chain, a backward chain, and
rungs between them where a backward op reads an activation or a parameter. Costs follow the alpha-beta model, so they
have the ties and the spread of scales (1e-7 to 1e-1 s) of the planner's own problems, without tracing anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from alpaviz.intra.problem import Edge, FloatArray, MemoryRow, ShardingProblem

LATENCY = 5e-6
BYTES_PER_SECOND = (5e10, 1.2e10, 3e9)
FLOP_PER_SECOND = 1e14


@dataclass(slots=True)
class _Step:
    """A training step under construction: ops with loops, candidates as one loop (or -1) per mesh axis."""

    mesh: tuple[int, ...]
    sizes: dict[str, int]
    unary: list[FloatArray] = field(default_factory=list)
    usage: list[FloatArray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    candidates: list[tuple[tuple[str, ...], ...]] = field(default_factory=list)
    edges: dict[tuple[int, int], FloatArray] = field(default_factory=dict)

    def add(self, name: str, output: str, *operands: tuple[int, str], reduced: str = "", kept: float = 1.0) -> int:
        """Add an op; `operands` are (variable, dims as this op calls them); returns its variable."""
        loops = output + reduced
        choices = [c for c in itertools.product(("", *loops), repeat=len(self.mesh)) if self._divides(c)]
        flop = 2.0 * float(np.prod([self.sizes[d] for d in loops])) if reduced else 0.0
        cost = [self._compute(c, flop) + self._all_reduce(output, c, reduced) for c in choices]
        self.unary.append(np.array(cost))
        self.usage.append(np.array([kept * self._bytes(output, c) for c in choices]))
        self.names.append(name)
        self.outputs.append(output)
        self.candidates.append(tuple(choices))
        me = len(self.unary) - 1
        for source, dims in operands:
            self._connect(source, me, dims)
        return me

    def _divides(self, choice: tuple[str, ...]) -> bool:
        return all(
            self.sizes[d] % int(np.prod([m for m, c in zip(self.mesh, choice, strict=True) if c == d])) == 0
            for d in set(choice) - {""}
        )

    def _bytes(self, dims: str, choice: tuple[str, ...]) -> float:
        shards = np.prod([m for m, c in zip(self.mesh, choice, strict=True) if c != "" and c in dims])
        return 2.0 * float(np.prod([self.sizes[d] for d in dims])) / float(shards)

    def _compute(self, choice: tuple[str, ...], flop: float) -> float:
        return flop / FLOP_PER_SECOND / float(np.prod([m for m, c in zip(self.mesh, choice, strict=True) if c]))

    def _all_reduce(self, output: str, choice: tuple[str, ...], reduced: str) -> float:
        axes = [a for a, c in enumerate(choice) if c and c in reduced]
        return sum(self._transfer(a, 2.0 * self._bytes(output, choice)) for a in axes)

    def _transfer(self, axis: int, size: float) -> float:
        n = self.mesh[axis]
        return 0.0 if n == 1 else LATENCY * (n - 1) + size * (n - 1) / n / BYTES_PER_SECOND[axis]

    def _connect(self, source: int, target: int, dims: str) -> None:
        """Add the resharding cost from the layout that `source` gives to the one that `target` reads."""
        given = self.outputs[source]
        matrix = np.zeros((len(self.unary[source]), len(self.unary[target])))
        for i, held in enumerate(self.candidates[source]):
            held = tuple(d if d in given else "" for d in held)
            for j, wanted in enumerate(self.candidates[target]):
                matrix[i, j] = self._reshard(given, held, tuple(_rename(d, dims, given) for d in wanted))
        key = (min(source, target), max(source, target))
        matrix = matrix if source < target else matrix.T
        self.edges[key] = self.edges[key] + matrix if key in self.edges else matrix

    def _reshard(self, dims: str, held: tuple[str, ...], wanted: tuple[str, ...]) -> float:
        cost = 0.0
        for axis, (a, b) in enumerate(zip(held, wanted, strict=True)):
            if a and a != b:
                size = self._bytes(dims, tuple("" if i == axis else c for i, c in enumerate(held)))
                cost += self._transfer(axis, size / (self.mesh[axis] if b else 1))
        return cost


def _rename(dim: str, names: str, given: str) -> str:
    return given[names.index(dim)] if dim and dim in names else ""


def make_training_step(
    layers: int, mesh: tuple[int, ...] = (4, 2), hidden: int = 1024, batch: int = 16
) -> ShardingProblem:
    """A transformer's training step, about 38 variables a layer, with one memory row that does not bind."""
    sizes = {"b": batch, "s": 1024, "h": hidden, "i": hidden, "n": 16, "d": hidden // 16, "t": 1024, "f": 4 * hidden}
    step = _Step(mesh, sizes)
    x = step.add("x", "bsh")
    undo: list[Callable[[int], int]] = []
    for layer in range(layers):
        x = _add_block(step, f"layer{layer}/", x, undo)
    y = step.add("loss", "bsh", (x, "bsh"))
    for back in reversed(undo):
        y = back(y)
    edges = tuple(Edge(u, v, cost) for (u, v), cost in step.edges.items())
    row = MemoryRow("device", tuple(range(len(step.unary))), tuple(step.usage), float("inf"))
    return ShardingProblem(tuple(step.unary), edges, (row,), tuple(step.names))


def limit_memory(problem: ShardingProblem, share: float, choice: tuple[int, ...]) -> ShardingProblem:
    """`problem` with its row's limit at `share` of the way from the least possible bytes to those of `choice`."""
    row = problem.memory[0]
    least = sum(float(usage.min()) for usage in row.usage)
    return replace(problem, memory=(replace(row, limit=least + share * (problem.measure_memory(choice)[0] - least)),))


def _add_block(step: _Step, at: str, x: int, undo: list[Callable[[int], int]]) -> int:
    """Forward ops of one block; appends to `undo` what adds its backward ops."""

    def parameter(name: str, dims: str) -> int:
        return step.add(at + name, dims, kept=8.0)

    def update(name: str, dims: str, weight: int, gradient: int) -> None:
        step.add(at + name + "/update", dims, (weight, dims), (gradient, dims), kept=0.0)

    wq, wp = parameter("qkv", "hi"), parameter("proj", "ih")
    w1, w2 = parameter("fc1", "hf"), parameter("fc2", "fh")
    norm = step.add(at + "ln1", "bsh", (x, "bsh"))
    q = [step.add(at + c, "bsnd", (norm, "bsh"), (wq, "hn"), reduced="h") for c in "qkv"]
    score = step.add(at + "score", "bnst", (q[0], "bsnd"), (q[1], "btnd"), reduced="d")
    soft = step.add(at + "softmax", "bnst", (score, "bnst"))
    mixed = step.add(at + "mix", "bsnd", (soft, "bnst"), (q[2], "btnd"), reduced="t")
    proj = step.add(at + "proj", "bsh", (mixed, "bsn"), (wp, "nh"), reduced="n")
    mid = step.add(at + "add1", "bsh", (x, "bsh"), (proj, "bsh"))
    norm2 = step.add(at + "ln2", "bsh", (mid, "bsh"))
    up = step.add(at + "fc1", "bsf", (norm2, "bsh"), (w1, "hf"), reduced="h")
    act = step.add(at + "gelu", "bsf", (up, "bsf"))
    down = step.add(at + "fc2", "bsh", (act, "bsf"), (w2, "fh"), reduced="f")
    out = step.add(at + "add2", "bsh", (mid, "bsh"), (down, "bsh"))

    def back(dy: int) -> int:
        d_act = step.add(at + "d_act", "bsf", (dy, "bsh"), (w2, "fh"), reduced="h")
        g2 = step.add(at + "g_w2", "fh", (act, "bsf"), (dy, "bsh"), reduced="bs")
        update("fc2", "fh", w2, g2)
        d_up = step.add(at + "d_up", "bsf", (d_act, "bsf"), (up, "bsf"))
        d_n2 = step.add(at + "d_ln2", "bsh", (d_up, "bsf"), (w1, "hf"), reduced="f")
        g1 = step.add(at + "g_w1", "hf", (norm2, "bsh"), (d_up, "bsf"), reduced="bs")
        update("fc1", "hf", w1, g1)
        d_mid = step.add(at + "d_mid", "bsh", (dy, "bsh"), (d_n2, "bsh"), (mid, "bsh"))
        d_mix = step.add(at + "d_mix", "bsnd", (d_mid, "bsh"), (wp, "nh"), reduced="h")
        gp = step.add(at + "g_wp", "ih", (mixed, "bsi"), (d_mid, "bsh"), reduced="bs")
        update("proj", "ih", wp, gp)
        d_soft = step.add(at + "d_soft", "bnst", (d_mix, "bsnd"), (q[2], "btnd"), reduced="d")
        d_v = step.add(at + "d_v", "btnd", (soft, "bnst"), (d_mix, "bsnd"), reduced="s")
        d_score = step.add(at + "d_score", "bnst", (d_soft, "bnst"), (soft, "bnst"))
        d_q = step.add(at + "d_q", "bsnd", (d_score, "bnst"), (q[1], "btnd"), reduced="t")
        d_k = step.add(at + "d_k", "btnd", (d_score, "bnst"), (q[0], "bsnd"), reduced="s")
        d_norm = step.add(at + "d_ln1", "bsh", (d_q, "bsn"), (d_k, "bsn"), (d_v, "bsn"), (wq, "hn"), reduced="n")
        gq = step.add(at + "g_wq", "hi", (norm, "bsh"), (d_q, "bsi"), (d_k, "bsi"), (d_v, "bsi"), reduced="bs")
        update("qkv", "hi", wq, gq)
        return step.add(at + "d_x", "bsh", (d_mid, "bsh"), (d_norm, "bsh"), (x, "bsh"))

    undo.append(back)
    return out


def every_choice(problem: ShardingProblem) -> Iterator[tuple[int, ...]]:
    """All choices, legal or not."""
    return itertools.product(*(range(len(cost)) for cost in problem.unary))


def is_legal(problem: ShardingProblem, choice: tuple[int, ...]) -> bool:
    """Whether nothing that `choice` takes is forbidden and all memory rows hold."""
    if not np.isfinite(problem.price(choice)):
        return False
    used = problem.measure_memory(choice)
    return all(bytes_used <= row.limit * (1 + 1e-12) for bytes_used, row in zip(used, problem.memory, strict=True))


def find_best_cost(problem: ShardingProblem, forced: dict[int, int] | None = None) -> float:
    """Optimum by brute force, among the choices that take the `forced` candidates; inf where none is legal."""
    taken = (forced or {}).items()
    return min(
        (problem.price(c) for c in every_choice(problem) if all(c[v] == k for v, k in taken) and is_legal(problem, c)),
        default=float("inf"),
    )


_COSTS = st.one_of(
    st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 1e-7]),
    st.floats(min_value=0.0, max_value=10.0, allow_subnormal=False).map(lambda x: round(x, 3)),
)


@st.composite
def sharding_problems(
    draw: st.DrawFn,
    max_variables: int = 5,
    max_candidates: int = 4,
    max_rows: int = 2,
    may_forbid: bool = True,
) -> ShardingProblem:
    """Small problems with ties, zero costs, forbidden entries, and memory limits that bind, or that nothing meets."""
    costs = st.one_of(_COSTS, st.just(float("inf"))) if may_forbid else _COSTS
    sizes = draw(st.lists(st.integers(1, max_candidates), min_size=1, max_size=max_variables))
    unary = tuple(np.array(draw(st.lists(costs, min_size=k, max_size=k))) for k in sizes)
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    edges = []
    for u, v in draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []:
        count = sizes[u] * sizes[v]
        cost = np.array(draw(st.lists(costs, min_size=count, max_size=count))).reshape(sizes[u], sizes[v])
        edges.append(Edge(u, v, cost) if draw(st.booleans()) else Edge(v, u, cost.T))
    rows = []
    for number in range(draw(st.integers(0, max_rows))):
        usage = tuple(np.array(draw(st.lists(st.integers(0, 9), min_size=k, max_size=k)), float) for k in sizes)
        limit = draw(st.integers(0, 9 * len(sizes)))
        rows.append(MemoryRow(f"row{number}", tuple(range(len(sizes))), usage, float(limit)))
    return ShardingProblem(unary, tuple(edges), tuple(rows))
