"""Home-made consoles: `3/100 | loss=.. | reward=..`, `Epoch:[1/1](3/500), Reward: ..`, Python logging."""

import re

from jaxgrpo.logs.columns import EVAL_REWARD, REWARD, normal
from jaxgrpo.logs.table import Table, number
from jaxgrpo.logs.trl import parse_dicts

_MAX_LINE = 4000
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf"
_PAIR = re.compile(
    rf"(?<![\w.])([A-Za-z_][\w/@-]{{0,40}}(?: [\w/@-]{{1,40}}){{0,2}})\s{{0,10}}[:=]\s{{0,10}}"
    rf"({_NUMBER})(?![\w.])(%?)",
    re.IGNORECASE,
)
_OF = re.compile(r"(?<![\w./])(\d{1,9})\s?/\s?(\d{1,9})(?![\w./])")
_EPOCH = re.compile(r"[Ee]poch\s?:?\s?\[?(\d{1,6})\s?/\s?(\d{1,6})\]?\s?\(?(\d{1,9})\s?/\s?(\d{1,9})")
_STEP = re.compile(r"\b(?:step|iter|iteration)\s?[#:]?\s?(\d{1,9})\b", re.IGNORECASE)
_BATCH = re.compile(r"rollout batch (\d{1,9})\b")
_KNOWN = re.compile(r"\b(lr|learning_rate|group_size|num_generations|G)=(\d[\d.eE+-]{0,20})")
_FIELDS = {"lr": "learning_rate", "learning_rate": "learning_rate", "group_size": "group_size"}
_FIELDS |= {"num_generations": "group_size", "G": "group_size"}


class ConsoleReader:
    """Collects rows of any console that names a reward and other numbers on one line."""

    def __init__(self, name: str):
        self.table = Table(name, "console", "rollout")
        self.trained = 0
        self._batch: float | None = None
        self._lines = 0
        self._sums = False

    def feed(self, line: str) -> bool:
        """Take a line; tell whether it was a row."""
        self._lines += 1
        if len(line) > _MAX_LINE:
            return False
        if self.trained == 0 and self._lines < 2000 and "=" in line:
            for match in _KNOWN.finditer(line):
                value = number(match[2])
                if value is not None and value > 0:
                    self.table.known.setdefault(_FIELDS[match[1]], value)
        if "rollout batch" in line:
            match = _BATCH.search(line)
            if match:
                self._batch = float(match[1])
        lower = line.lower()
        if "reward" not in lower and "eval" not in lower:
            return False
        if "reward_data" in lower:
            return self._feed_sums(line)
        row: dict[str, float] = {}
        for match in _PAIR.finditer(line):
            value = number(match[2])
            if value is not None:
                row.setdefault(match[1].strip(), value / 100.0 if match[3] else value)
        names = {normal(name) for name in row}
        if not names & {*REWARD}:
            if self.trained and names & {*EVAL_REWARD} and self._batch is not None:
                self.table.add(row | {"step": self._batch})
                return True
            return False
        step = self._step(line, names)
        if step is None and len(row) < 2:
            return False
        if step is not None:
            row["step"] = step
        self.table.add(row)
        self.trained += 1
        return True

    def _step(self, line: str, names: set[str]) -> float | None:
        """The step that a line states as `3/100`, or as step 3 of epoch 2."""
        if names & {"step", "iteration", "iter", "global_step"}:
            return None
        match = _EPOCH.search(line)
        if match:
            epoch, of_epochs, step, steps = (int(group) for group in match.groups())
            if 1 <= epoch <= of_epochs:
                return float((epoch - 1) * steps + step)
        found = [(int(total), int(step)) for step, total in _OF.findall(line) if int(step) <= int(total)]
        if found:
            return float(max(found)[1])
        match = _STEP.search(line)
        return float(match[1]) if match else None

    def _feed_sums(self, line: str) -> bool:
        """A line whose rewards are sums over a number of samples: `reward_data: {'total_num': ..}`."""
        row: dict[str, float] = {}
        start = line.find("{")
        for match in _PAIR.finditer(line[: start if start >= 0 else len(line)]):
            value = number(match[2])
            if value is not None:
                row[match[1].strip()] = value
        sums = next(iter(parse_dicts(line)), {})
        count = sums.pop("total_num", 0.0)
        if "total_reward" not in sums or not count > 0:
            return False
        for name, total in sums.items():
            row["reward" if name == "total_reward" else name.removeprefix("total_")] = total / count
        if self._batch is not None:
            row["step"] = self._batch
        self.table.add(row)
        self.trained += 1
        self._sums = True
        return True

    @property
    def has_rows(self) -> bool:
        """Whether a training row has been found."""
        return self.trained > 0

    def finish(self) -> list[Table]:
        """The table of what was collected; empty if there was no training row."""
        if self.trained == 0:
            return []
        if self._sums:
            self.table.notes.append(
                "rewards are logged as sums and have been divided by the number of samples"
            )
        return [self.table]
