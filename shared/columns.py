"""Dense arrays as packed little-endian bytes: the only place that turns `Column` messages into numpy and back."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from meiri.columns.v1.column_pb2 import Column, ColumnType, TrackLists
from numpy.typing import NDArray

from shared.errors import Permanent

Array = NDArray[Any]

_TYPES = {
    ColumnType.COLUMN_TYPE_UINT8: np.dtype("<u1"),
    ColumnType.COLUMN_TYPE_INT32: np.dtype("<i4"),
    ColumnType.COLUMN_TYPE_UINT32: np.dtype("<u4"),
    ColumnType.COLUMN_TYPE_INT64: np.dtype("<i8"),
    ColumnType.COLUMN_TYPE_UINT64: np.dtype("<u8"),
    ColumnType.COLUMN_TYPE_FLOAT32: np.dtype("<f4"),
}
_CODES = {dtype: code for code, dtype in _TYPES.items()}


def column(values: Iterable[Any] | Array, dtype: str) -> Column:
    """Pack values as `dtype` (u1, i4, u4, i8, u8 or f4)."""
    wanted = np.dtype("<" + dtype)
    array = np.ascontiguousarray(values if isinstance(values, np.ndarray) else list(values), dtype=wanted)
    return Column(type=_CODES[wanted], data=array.tobytes())


def array(message: Column, dtype: str, *, name: str, length: int | None = None) -> Array:
    """View the column as a read-only array [n] of `dtype` without copying.

    Raises Permanent("bad_column") when its type is another, its bytes are no whole number of elements, or its length is
    not `length`.
    """
    wanted = np.dtype("<" + dtype)
    if _TYPES.get(message.type) != wanted:
        raise Permanent("bad_column", f"Column {name} must be of type {ColumnType.Name(_CODES[wanted])}: send it so.")
    if len(message.data) % wanted.itemsize:
        raise Permanent("bad_column", f"Column {name} has {len(message.data)} bytes, no whole number of elements.")
    values = np.frombuffer(message.data, dtype=wanted)
    if length is not None and len(values) != length:
        raise Permanent("bad_column", f"Column {name} has {len(values)} elements where {length} are needed.")
    return values


def splits(message: Column, *, name: str, lists: int | None, rows: int) -> Array:
    """View row splits [lists + 1], checked to start at 0, never to fall and to end at `rows`."""
    values = array(message, "i8", name=name, length=None if lists is None else lists + 1)
    if len(values) == 0 or values[0] != 0 or values[-1] != rows or bool(np.any(np.diff(values) < 0)):
        raise Permanent("bad_column", f"Column {name} must rise from 0 to {rows}.")
    return values


def track_lists(row_splits: Array, track_key: Array) -> TrackLists:
    return TrackLists(splits=column(row_splits, "i8"), track_key=column(track_key, "u8"))
