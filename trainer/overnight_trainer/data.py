"""The data: bytes of real text, in an order that one number describes.

Without `--data` the text is the source of the Python standard library, which every machine has.
It is joined once into OUT/corpus-DIGEST.bin and memory-mapped; the last hundredth is held out.
The sampler keeps nothing but `position`, the sequences used so far, so a resumed run goes on
exactly where it was, and jumping over data costs nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from . import TrainerError
from .checkpoint import fsync

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library() -> list[Path]:
    """Python's own sources, in an order that does not depend on the file system."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def build_corpus(files: Sequence[Path], out: Path) -> Path:
    """Join the files into one under `out`, unless an earlier attempt has done so."""
    digest = hashlib.sha256()
    for path in files:
        try:
            stat = path.stat()
        except OSError as error:
            raise TrainerError(f"cannot read {path}: {error.strerror}; check --data") from error
        digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    target = out / f"corpus-{digest.hexdigest()[:12]}.bin"
    if not target.exists():
        temporary = target.with_suffix(".tmp")
        with open(temporary, "wb") as corpus:
            for path in files:
                corpus.write(path.read_bytes() + b"\n")
            corpus.flush()
            os.fsync(corpus.fileno())
        os.replace(temporary, target)
        fsync(out)
    return target


def open_corpus(path: Path, seq_len: int) -> tuple[Tensor, Tensor]:
    """The training bytes and the held-out bytes, memory-mapped."""
    size = path.stat().st_size
    held_out = max(size // 100, 16 * seq_len)
    if size < 64 * seq_len:
        raise TrainerError(f"{size} bytes of text, {64 * seq_len} are needed: give --data more")
    corpus = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return corpus[:-held_out], corpus[-held_out:]


class Sampler:
    """Which sequences a step sees, as a function of `position` alone.

    The text is cut into windows. One epoch visits each window once, a fixed stride apart (coprime
    to their number, near the golden ratio, so that neighbours in a batch are far apart in the
    text). Each epoch begins elsewhere and cuts the text at another offset.
    """

    def __init__(self, tokens: Tensor, *, seq_len: int, seed: int = 0) -> None:
        self.tokens = tokens
        self.seq_len = seq_len
        self.seed = seed
        self.position = 0
        self.windows = len(tokens) // seq_len - 2  # room for the moved cut and the last target
        self.stride = max(1, int(self.windows * 0.618034))
        while math.gcd(self.stride, self.windows) != 1:
            self.stride += 1

    def rows(self, ahead: int, count: int) -> Tensor:
        """`count` sequences of seq_len + 1 bytes, from position + `ahead` on; moves nothing."""
        starts = torch.tensor([self._start(self.position + ahead + i) for i in range(count)])
        return self.tokens[starts[:, None] + torch.arange(self.seq_len + 1)].long()

    def _start(self, index: int) -> int:
        epoch, index = divmod(index, self.windows)
        draw = hashlib.sha256(f"{self.seed}:{epoch}".encode()).digest()
        first, shift = int.from_bytes(draw[:8], "big"), int.from_bytes(draw[8:16], "big")
        window = (first + index * self.stride) % self.windows
        return window * self.seq_len + shift % self.seq_len
