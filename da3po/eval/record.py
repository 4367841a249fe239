"""The samples of an evaluation on disk, a row each: its state while it runs, and its record afterwards."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from da3po.data.files import read_rows
from da3po.data.problems import DataError
from da3po.eval.result import Sample
from da3po.types import Outcome, Prompt


class SampleRecord:
    """A .jsonl file that gets the samples of each problem when they are graded.

    An evaluation that is started again takes up the problems that are there whole. Every row carries a digest of what
    the samples depend on, so that samples of other weights or settings are never taken for its own.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], prompts: Sequence[Prompt], num_samples: int) -> None:
        """
        Raises:
            DataError: the file holds samples of another evaluation.
        """
        self._path = path
        self._prompts = {prompt.uid: prompt for prompt in prompts}
        self._digest = digest(settings)
        self._num_samples = num_samples
        self.done = self._read() if path.exists() else {}
        self.write(prompts)

    @property
    def num_pending(self) -> int:
        return len(self._prompts) - len(self.done)

    def add(self, prompt: Prompt, samples: Sequence[Sample]) -> None:
        """Write down a problem's samples, at once."""
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(self._lines(prompt, samples))
        self.done[prompt.uid] = samples

    def write(self, prompts: Iterable[Prompt]) -> None:
        """The whole file anew, in the order of the problems."""
        partial = self._path.with_name(self._path.name + ".partial")
        with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
            for prompt in prompts:
                file.writelines(self._lines(prompt, self.done.get(prompt.uid, ())))
        partial.replace(self._path)

    def _lines(self, prompt: Prompt, samples: Sequence[Sample]) -> list[str]:
        shared = {"evaluation": self._digest, "prompt": prompt.text}
        return [json.dumps({**shared, **sample.as_row()}, ensure_ascii=False) + "\n" for sample in samples]

    def _read(self) -> dict[str, Sequence[Sample]]:
        """Problems whose samples are all there. A problem that the engine lost a sample of is asked again."""
        found: dict[str, list[Sample]] = defaultdict(list)
        for number, row in read_rows(self._path):
            prompt = self._prompts.get(row.get("uid", ""))
            if row.get("evaluation") != self._digest or (prompt and prompt.text != row["prompt"]):
                raise DataError(
                    f"{self._path}, line {number}: a sample of another evaluation (other weights, prompts or sampling "
                    "settings); choose another run.dir, or remove the file"
                )
            if prompt:
                found[prompt.uid].append(Sample.from_row(row))
        return {
            uid: sorted(samples, key=lambda sample: sample.index)
            for uid, samples in found.items()
            if len(samples) == self._num_samples and all(sample.outcome is not Outcome.ABORTED for sample in samples)
        }


def digest(settings: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def weights_fingerprint(model: Path) -> str:
    """Tells model directories apart without reading gigabytes: config, and names, sizes and times of the weights."""
    config = (model / "config.json").read_bytes()
    files = sorted(file for pattern in ("*.safetensors", "*.bin") for file in model.glob(pattern))
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return digest({"config": hashlib.blake2b(config).hexdigest(), "files": stats})
