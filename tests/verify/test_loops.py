"""Trip counts of loops are read from compiled HLO, also where loops are nested."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from alpaviz.verify.loops import count_runs

TEXT = """HloModule m, is_scheduled=true

%inner (p: f32[4]) -> f32[4] {
  ROOT %a = f32[4] add(%p, %p)
}

%outer (p: f32[4]) -> f32[4] {
  ROOT %w = f32[4] while(%p), condition=%test, body=%inner, backend_config={"known_trip_count":{"n":"3"}}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  ROOT %w = f32[4] while(%p), condition=%test, body=%outer, backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_a_nested_body_runs_as_often_as_both_loops_together() -> None:
    assert count_runs(TEXT) == {"inner": 15, "outer": 5, "main": 1}


def test_a_loop_of_unknown_length_counts_once() -> None:
    assert count_runs(TEXT.replace("known_trip_count", "other"))["inner"] == 1


def test_a_compiled_scan_has_a_body_that_runs_once_per_step() -> None:
    def scan(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x[0], x)[0]

    text = jax.jit(scan).lower(jax.ShapeDtypeStruct((7, 8, 8), jnp.float32)).compile().as_text()
    assert 7 in count_runs(str(text)).values()
