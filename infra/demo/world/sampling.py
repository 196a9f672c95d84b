"""Weighted draws for many rows at once."""

import numpy as np
import numpy.typing as npt

from infra.demo.world.model import Floats, Int64


def rows_cdf(weights: npt.NDArray[np.floating]) -> Floats:
    """Flat [R * C] rising array: row r's cumulative distribution moved up by r, so one search serves all rows.

    Every row needs a positive weight somewhere.
    """
    cdf = np.cumsum(weights, axis=1, dtype=np.float64)
    cdf /= cdf[:, -1:]
    cdf += np.arange(len(cdf))[:, None]
    return cdf.ravel()


def draw(cdf: Floats, columns: int, rows: npt.NDArray[np.integer], uniform: Floats) -> Int64:
    """Choose a column for each entry of `rows` by the weights that made `cdf`.

    `uniform` in [0, 1) has the shape of `rows`.
    """
    found = np.searchsorted(cdf, rows + uniform, side="right") - rows.astype(np.int64) * columns
    return np.asarray(np.clip(found, 0, columns - 1), dtype=np.int64)


def spans(lengths: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    """For consecutive groups of the given lengths: (group of each element, its position in the group)."""
    group = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    return group, np.arange(len(group)) - np.repeat(starts, lengths)
