"""Weights of layers that TensorRT up to 10 describes by number and type, without a tensor."""

import re
from collections.abc import Mapping

from fusescope.profiler.layers import Tensor

_KEYS = ("Weights", "Bias", "ConvWeights", "ConvBias")
_COUNTED = re.compile(r'\{"Type": "(?P<dtype>\w{1,20})", "Count": (?P<count>[1-9][0-9]{0,14})\}')


def counted_weights(attributes: Mapping[str, str]) -> tuple[Tensor, ...]:
    """What a layer's attributes say of weights and bias, such as ``Weights: {"Type": "Half", "Count": 432}``."""
    counted = ((key, _COUNTED.fullmatch(attributes[key])) for key in _KEYS if key in attributes)
    return tuple(Tensor(key, (int(match["count"]),), match["dtype"]) for key, match in counted if match)
