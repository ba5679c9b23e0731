"""The process that compiles a plan's stages: `python child.py FOLDER`.

It reads `request.pickle` from the folder and writes `progress.json` and `answer.pickle`.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path) -> int:
    """Answer the request in `folder`."""
    request: dict[str, Any] = pickle.loads((folder / "request.pickle").read_bytes())
    sys.path[:] = request["path"]
    from alpaviz.errors import AlpaVizError

    try:
        answer: dict[str, Any] = {"verification": verify(request, folder)}
    except AlpaVizError as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"}
    temporary = folder / "answer.part"
    temporary.write_bytes(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
    temporary.replace(folder / "answer.pickle")
    return 0


def verify(request: dict[str, Any], folder: Path) -> Any:
    """The `Verification` of the plan in `request`."""
    began = time.monotonic()
    import jax
    from ray import cloudpickle

    from alpaviz.errors import VerificationError
    from alpaviz.plan_file import plan_from_json
    from alpaviz.program import retrace
    from alpaviz.runtime.meshes import start_devices
    from alpaviz.verify.report import Verification
    from alpaviz.verify.stages import StageVerifier

    for name, value in request["config"].items():
        jax.config.update(name, value)
    plan = plan_from_json(request["plan"])
    program = retrace(cloudpickle.loads(request["recipe"]))
    if program.fingerprint != plan.program.fingerprint:
        raise VerificationError(
            f"the process that compiles traced program {program.fingerprint}, the plan is for "
            f"{plan.program.fingerprint}: packages or registered rules differ there. Register sharding rules in a "
            "module that the step's own module imports."
        )
    verifier = StageVerifier(plan, program, start_devices())
    checks = []
    for stage in range(plan.num_stages):
        temporary = folder / "progress.part"
        temporary.write_text(json.dumps([stage, plan.num_stages]))
        temporary.replace(folder / "progress.json")
        checks.append(verifier.check(stage))
    return Verification(plan.program.name, tuple(checks), time.monotonic() - began)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # threads of JAX and Ray are not waited for
