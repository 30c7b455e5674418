"""What was released after a checkpoint: a step that is taken again must be the same to the bit, or it is refused.

A run that goes on from a checkpoint repeats the steps between it and the crash. Repeated exactly (same data, settings,
model, loss, machine) nothing new is released. Anything else would be a second release of a step that was paid once; so
each step leaves the name of its release here, beside the checkpoint, before its result is used.
"""

from __future__ import annotations

import os
from pathlib import Path

from tacit.errors import InvalidInput, MechanismMismatch

__all__ = ["Journal"]


class Journal:
    """Names of releases, one line per step, appended by whoever goes on from the checkpoint.

    The names are digests of secret sums: the file is as secret as the checkpoint, mode 0600.

    Args:
        checkpoint: the file it belongs to.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.path = checkpoint.with_name(f"{checkpoint.name}.journal")
        self._seen: dict[int, str] = {}
        self._read = 0

    def begin(self, first: int) -> None:
        """A new checkpoint stands: steps before ``first`` will not be taken again."""
        self._refresh()
        kept = {step: name for step, name in self._seen.items() if step >= first}
        self._write(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "".join(f"{s} {n}\n" for s, n in kept.items()))
        self._seen, self._read = {}, 0

    def check(self, step: int, name: bytes) -> None:
        """Leave the name of a release, or find that it is the one that was made before.

        Args:
            step: its number.
            name: of the release.

        Raises:
            MechanismMismatch: if the step was taken before with another result.
        """
        self._refresh()
        text = name.hex()
        known = self._seen.get(step)
        if known is None:
            self._write(os.O_WRONLY | os.O_CREAT | os.O_APPEND, f"{step} {text}\n")
        elif known != text:
            raise MechanismMismatch(
                f"step {step} was released before, from the same checkpoint, with another result: another model, loss, "
                "optimizer or machine would spend the budget twice; go on exactly as before, or start a new plan"
            )

    def remove(self) -> None:
        """After the end of the run."""
        self.path.unlink(missing_ok=True)

    def _write(self, flags: int, text: str) -> None:
        try:
            with os.fdopen(os.open(self.path, flags, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise InvalidInput(f"{str(self.path)!r} cannot be written: {error.strerror or error}") from None

    def _refresh(self) -> None:
        """Read what was appended since, by this run or another one."""
        try:
            with self.path.open() as file:
                if self._read > os.fstat(file.fileno()).st_size:
                    self._seen, self._read = {}, 0
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            self._seen, self._read = {}, 0
            return
        whole = new[: new.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            step, _, name = line.partition(" ")
            if step.isdigit():
                self._seen.setdefault(int(step), name)
