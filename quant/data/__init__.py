"""Images and arrays to calibrate with and to evaluate on: `open_data`, `split`."""

from fusescope.quant.data.dataset import Batch, Dataset, split
from fusescope.quant.data.opening import open_data

__all__ = ["Batch", "Dataset", "open_data", "split"]
