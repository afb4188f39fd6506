"""The images of a study: calibrated with once per method, evaluated on once, both kept in the study's folder."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from pydantic import TypeAdapter

from fusescope import __version__
from fusescope.graph.files import write_text
from fusescope.graph.model import graph_of
from fusescope.quant.calibrate import calibrate, model_hash
from fusescope.quant.data import Dataset, open_data, split
from fusescope.quant.evaluate import Evaluation, evaluate
from fusescope.quant.ort import onnx_runner, signature
from fusescope.quant.placement import calibration_tensors
from fusescope.quant.preprocessing import preprocessing_of, timm_preprocessing
from fusescope.quant.ranges import Ranges, read_ranges, write_ranges
from fusescope.quant.recipe import Recipe
from fusescope.study.config import Data

ACCURACY, KEYS = "accuracy.json", "kept.json"
_BATCH = 16


class StudyData:
    """The calibration part and the held-out part of a study's images.

    Args:
        data: Which images.
        model: The study's unquantized model as it was given, with its weights.
        folder: Where results are kept.

    Raises:
        UserError: There are no such images, or the model does not say how to prepare them.
    """

    def __init__(self, data: Data, model: onnx.ModelProto, folder: Path) -> None:
        prepared = timm_preprocessing(data.preprocessing) if data.preprocessing else preprocessing_of(model)
        whole = open_data([Path(path) for path in data.path], preprocessing=prepared, every=data.every)
        calibration, held_out = split(whole, every=data.calibration_every, seed=data.seed)
        self.calibration = _first(calibration, data.calibration_images)
        self.held_out = _first(held_out, data.images)
        self._model = model
        self._folder = folder

    @cached_property
    def request(self) -> str:
        """Hash of the images that calibrate and of how they are prepared."""
        return _hash(self.calibration.describe())

    def ranges(self, recipe: Recipe, progress: Callable[[int], None] | None = None) -> Ranges:
        """Calibrate as a recipe asks, or return what is kept of having done so.

        Raises:
            UserError: The model cannot be calibrated.
        """
        fitted = recipe.format if recipe.method in {"mse", "entropy"} else ""
        tensors = _hash(recipe.tensors)[:8] if recipe.tensors else ""
        path = self._folder / f"scales-{'-'.join(filter(None, (recipe.method, fitted, tensors)))}.json"
        key = _hash([self.request, model_hash(self._model), recipe.method, fitted, recipe.tensors, __version__])
        if not self._is_kept(path, key):
            found = calibrate(
                self._model,
                self.calibration.batches(_BATCH, signature(self._model)),
                tensors=calibration_tensors(graph_of(self._model), recipe.tensors),
                method=recipe.method,
                format=recipe.format,
                data=self.calibration.describe(),
                progress=progress,
            )
            write_ranges(path, found)
            self._keep(path, key)
        return read_ranges(path)

    def accuracy(
        self,
        models: Mapping[str, tuple[str, onnx.ModelProto]],
        *,
        reference_name: str,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Evaluate models against the one that was given, or return what is kept of having done so.

        Args:
            models: Name to what the model was asked for by, as a hash, and the model.
            reference_name: What the given model is called.
            progress: Called with the number of images of each batch that is done.
        """
        path = self._folder / ACCURACY
        asked = {name: request for name, (request, _) in models.items()}
        key = _hash([self.held_out.describe(), model_hash(self._model), reference_name, asked, __version__])
        if not self._is_kept(path, key):
            found = evaluate(
                onnx_runner(self._model),
                {name: onnx_runner(proto, name=name) for name, (_, proto) in models.items()},
                self.held_out.batches(_BATCH, signature(self._model)),
                reference_name=reference_name,
                progress=progress,
            )
            write_text(path, json.dumps(asdict(found), indent=1) + "\n")
            self._keep(path, key)
        return TypeAdapter(Evaluation).validate_json(path.read_bytes())

    def _is_kept(self, path: Path, key: str) -> bool:
        return path.is_file() and self._keys().get(path.name) == key

    def _keep(self, path: Path, key: str) -> None:
        write_text(self._folder / KEYS, json.dumps({**self._keys(), path.name: key}, indent=1) + "\n")

    def _keys(self) -> dict[str, str]:
        path = self._folder / KEYS
        try:
            keys: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # nothing kept yet, or damaged: then all is done again
            return {}
        return keys


def _first(dataset: Dataset, images: int | None) -> Dataset:
    return dataset if images is None else dataset.take(images)


def _hash(asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
