"""What findings are made from: one quantized engine, its verdicts, its baseline."""

from dataclasses import dataclass

import pandas as pd

from fusescope.graph.rules import Prediction
from fusescope.profiler.attribution import EngineView
from fusescope.profiler.verdicts import Verdict


@dataclass(frozen=True)
class Evidence:
    """All that findings are made from."""

    view: EngineView
    """The quantized engine beside its graph."""

    layers: pd.DataFrame
    """Its layer table."""

    judged: tuple[Verdict, ...]
    """Its verdicts."""

    predictions: tuple[Prediction, ...]
    """The documented rules' predictions, in the order of `judged`."""

    target: str
    """What it was built for."""

    plan_bytes: int | None
    """Size of its plan."""

    baseline_view: EngineView | None
    """The baseline beside its graph; None without a baseline."""

    baseline: pd.DataFrame | None
    """The baseline's layer table; None without a baseline."""

    baseline_plan_bytes: int | None
    """Size of the baseline's plan."""
