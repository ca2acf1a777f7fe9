"""Restarts, resumptions and repeated steps: which rows of a log belong to one run of training."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Segment:
    """Rows of one run of training.

    Attributes:
        rows: Indices of the rows, in the order of the file.
        resumed: Steps at which training went on from an earlier checkpoint.
        replaced: Number of rows that a resumption made obsolete.
    """

    rows: np.ndarray
    resumed: list[float]
    replaced: int = 0


def find_segments(steps: np.ndarray, trained: np.ndarray, breaks: list[int]) -> list[Segment]:
    """Split rows where the step goes back, or where the log says that a session ended.

    A step that goes back into the range already covered, but not to the beginning, is training resumed from a
    checkpoint: it stays one run and the rows that were trained anew replace the old ones.

    Args:
        steps: Step of each row; NaN where a row has none.
        trained: Whether a row has a training reward.
        breaks: Rows at which a new session begins.

    Returns:
        The segments, in the order of the file.
    """
    steps = np.where(np.isnan(steps), -np.inf, steps)
    indices = np.flatnonzero(trained)
    if len(indices) == 0:
        return []
    own = steps[indices]
    session = np.searchsorted(np.asarray(sorted(breaks), dtype=np.int64), indices, side="right")
    starts = np.flatnonzero((np.diff(own) < 0) | (np.diff(session) > 0)) + 1
    bounds = np.concatenate([[0], starts, [len(indices)]])
    segments: list[Segment] = []
    first_row = 0
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        # Rows between two training rows, an evaluation say, go with the training row before them.
        last_row = int(indices[high]) if high < len(indices) else len(steps)
        forced = [b for b in breaks if indices[high - 1] < b <= last_row]
        if forced:
            last_row = forced[0]
        rows = np.arange(first_row, last_row)
        first_row = last_row
        start = own[low]
        if segments:
            before = segments[-1]
            kept = before.rows[trained[before.rows]]
            begin, end = steps[kept].min(), steps[kept].max()
            if begin + 1 < start <= end + 1 and session[low] == session[low - 1]:
                old = before.rows[steps[before.rows] < start]
                before.replaced += int(trained[before.rows].sum() - trained[old].sum())
                before.resumed.append(float(start))
                before.rows = np.concatenate([old, rows])
                continue
        segments.append(Segment(rows, []))
    return segments


def merge(
    steps: np.ndarray, trained: np.ndarray, arrays: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray], int]:
    """Make one row of each step, by the mean of what its rows say.

    Args:
        steps: Step of each row.
        trained: Whether a row has a training reward; steps without any are left out.
        arrays: The columns.

    Returns:
        The steps, ascending; the columns; how many training rows were merged into others.
    """
    unique, counts = np.unique(steps[trained], return_counts=True)
    position = np.searchsorted(unique, steps)
    position = np.minimum(position, len(unique) - 1)
    match = unique[position] == steps
    position, rows = position[match], np.flatnonzero(match)
    merged = {}
    with np.errstate(all="ignore"):
        for name, values in arrays.items():
            values = values[rows]
            there = ~np.isnan(values)
            number = np.bincount(position[there], minlength=len(unique))
            # Each is divided before they are added, so that large values do not overflow.
            shares = values[there] / number[position[there]]
            mean = np.bincount(position[there], weights=shares, minlength=len(unique))
            merged[name] = np.where(number > 0, mean, np.nan)
    return unique, merged, int(counts.sum() - len(unique))
