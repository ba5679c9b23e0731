"""Measures what devices reach, fits the cost model to it, and keeps the result.

In: the devices that JAX has (`measure`). Out: a `Calibration`, which `Cluster.calibrated` puts into the figures of a
cluster, so that plans for it are priced by what was measured. `fit_costs` needs samples only, no devices.
"""

from alpaviz.calibration.fit import Calibration, fit_costs
from alpaviz.calibration.measuring import measure
from alpaviz.calibration.samples import Sample, Work
from alpaviz.calibration.store import load_calibration, save_calibration

__all__ = ["Calibration", "Sample", "Work", "fit_costs", "load_calibration", "measure", "save_calibration"]
