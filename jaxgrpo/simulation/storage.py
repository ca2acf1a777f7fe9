"""Rewards of single paths in files: one chunk of configurations and paths a file, readable as soon as it is there."""

import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxgrpo.errors import SimulationError
from jaxgrpo.simulation.ensemble import Plan, Portion

Format = Literal["numpy", "parquet"]
_INDEX = "ensemble.json"


def _parquet() -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError as error:
        raise SimulationError(
            "storing as Parquet needs pyarrow: pip install 'jaxgrpo[parquet]', or take save_format='numpy'"
        ) from error


class Store:
    """A folder that takes the rewards of an ensemble chunk by chunk.

    Each chunk is written under another name first and then renamed, so that what has its final name is whole.

    Args:
        folder: Folder to make; it must be empty if it exists.
        format: `"numpy"` (`.npz` with `rewards`, `configurations`, `paths` and `steps`) or `"parquet"` (a long table
            with the columns `configuration`, `path`, `step` and `reward`).
        plan: How the ensemble is cut.
        configurations: Number of configurations.
        steps: Recorded steps.

    Raises:
        SimulationError: If the folder is in use, or pyarrow is needed and absent.
    """

    def __init__(self, folder: Path, format: Format, plan: Plan, configurations: int, steps: np.ndarray):
        if format not in get_args(Format):
            raise SimulationError(f"save_format must be one of {get_args(Format)}, got {format!r}")
        if format == "parquet":
            _parquet()
        self.folder, self.format, self.plan = folder, format, plan
        self.configurations, self.steps = configurations, steps
        folder.mkdir(parents=True, exist_ok=True)
        index = {
            "format": format,
            "configurations": configurations,
            "paths": plan.total,
            "steps": [int(step) for step in steps],
            "chunks": plan.blocks * plan.path_blocks,
        }
        found = folder / _INDEX
        # The processes of one simulation share the folder: the same index may be there already, but no chunks of another.
        if any(folder.glob("chunk-*")) or (found.exists() and json.loads(found.read_text()) != index):
            raise SimulationError(f"{folder}: holds an ensemble already; name another folder")
        temporary = folder / f".index-{os.getpid()}"
        temporary.write_text(json.dumps(index))
        temporary.replace(found)

    def add(self, portion: Portion) -> None:
        """Write the chunks of a portion."""
        rewards = portion.rewards
        if rewards is None:
            return
        for tile, values in zip(portion.tiles, rewards, strict=True):
            block, path_block = divmod(int(tile), self.plan.path_blocks)
            first, start = block * self.plan.configurations, path_block * self.plan.paths
            last = min(first + self.plan.configurations, self.configurations)
            end = min(start + self.plan.paths, self.plan.total)
            chunk = {
                "rewards": np.asarray(values)[: last - first, :, : end - start],
                "configurations": np.arange(first, last),
                "paths": np.arange(start, end),
                "steps": self.steps,
            }
            self._write(int(tile), chunk)

    def _write(self, tile: int, chunk: dict[str, np.ndarray]) -> None:
        ending = "npz" if self.format == "numpy" else "parquet"
        final = self.folder / f"chunk-{tile:08d}.{ending}"
        temporary = self.folder / f".{final.name}.part"
        with temporary.open("wb") as file:
            if self.format == "numpy":
                np.savez(file, **chunk)  # pyright: ignore[reportArgumentType]
            else:
                pyarrow = _parquet()
                axes = (chunk["configurations"], chunk["steps"], chunk["paths"])
                configuration, step, path = (x.reshape(-1) for x in np.meshgrid(*axes, indexing="ij"))
                columns = {
                    "configuration": configuration,
                    "path": path,
                    "step": step,
                    "reward": chunk["rewards"].reshape(-1),
                }
                pyarrow.parquet.write_table(pyarrow.table(columns), file)
        temporary.replace(final)


def read_chunks(folder: str | Path) -> Iterator[dict[str, np.ndarray]]:
    """The chunks of a stored ensemble that are complete, in their order.

    Args:
        folder: What was given as `save`.

    Yields:
        `rewards` of shape `(configurations, steps, paths)` with the numbers of its `configurations`, `steps` and `paths`.

    Raises:
        SimulationError: If there is no ensemble in the folder.
    """
    folder = Path(folder)
    if not (folder / _INDEX).is_file():
        raise SimulationError(f"{folder}: holds no stored ensemble ({_INDEX} is missing)")
    for file in sorted(folder.glob("chunk-*")):
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as chunk:
                yield {name: chunk[name] for name in chunk.files}
            continue
        table = _parquet().parquet.read_table(file)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        axes = [np.unique(columns[name]) for name in ("configuration", "step", "path")]
        yield {
            "rewards": columns["reward"].reshape([len(axis) for axis in axes]),
            "configurations": axes[0],
            "steps": axes[1],
            "paths": axes[2],
        }
