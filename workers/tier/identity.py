"""The folder of a rank's blocks, whose name changes with everything that a block's bytes depend on besides its tokens.

That is: the weights' contents, the model's and the quantization's configuration, the model's own code if it is trusted,
the code of plugins, dtypes, the layout of a block, the number of ranks, the order of sums, and the program itself.
Blocks of another configuration are therefore never found. Folders that were not used for UNUSED_S are removed.
"""

import hashlib
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.plugins import PluginKind, digest_of_code

from .checksum import Checksum

log = logging.getLogger(__name__)

UNUSED_S = 30 * 86400.0
SETTINGS = ("config.json", "quantize_config.json", "hf_quant_config.json")
WORKERS = Path(__file__).parents[1]
CHECKSUM = re.compile("[0-9a-f]{32}")
STAMPS = "weights-"  # files with the checksum of a weight file, named after its path and stamp


def folder_of(
    root: Path, config: Config, model: Path, weights: Iterable[Path], facts: tuple[object, ...], checksum: Checksum
) -> Path:
    """The folder in `root`. `facts`: dtypes, layout, ranks, arithmetic, as JSON. Raises OSError.

    Weight files are read once; afterwards their checksums are found by path, size and times.
    """
    root.mkdir(parents=True, exist_ok=True)
    settings = config.model
    fields = (
        checksum.name,
        _program(),
        [_weights(root, path, checksum) for path in sorted(weights)],
        [_text(model / name) for name in SETTINGS],
        _code(model) if settings.trust_remote_code else "",
        digest_of_code([(PluginKind.FAMILY, settings.plugins), (PluginKind.PLATFORM, (settings.platform,))]),
        (settings.model_impl, settings.dtype, settings.quantization, settings.quantization_group_size),
        (settings.quantize_lm_head, settings.max_model_len, settings.platform, settings.plugins),
        facts,
    )
    folder = root / hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:32]
    _remove_unused(root, folder)
    return folder


def _program() -> str:
    """A digest of the sources and libraries that compute keys and values."""
    return _digest((*WORKERS.rglob("*.py"), *(WORKERS.parent / "csrc").glob("_cpu_*.so")))


def _code(model: Path) -> str:
    """A digest of the Python files of a model folder."""
    return _digest(model.rglob("*.py"))


def _digest(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def _weights(root: Path, path: Path, checksum: Checksum) -> str:
    found = path.stat()
    stamp = (str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, checksum.name)
    known = root / (STAMPS + hashlib.sha256(msgspec.json.encode(stamp)).hexdigest()[:32])
    if CHECKSUM.fullmatch(text := _text(known)):  # a power failure may have left anything, most likely zeros
        return text
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = checksum.of_file(file).hex()
    finally:
        os.close(file)
    known.write_text(text)
    return text


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _remove_unused(root: Path, own: Path) -> None:
    oldest = time.time() - UNUSED_S
    for path in root.iterdir():
        if path != own and len(path.name) == 32 and _is_unused(path, oldest):
            log.info("removing %s, which was not used for %d days", path, UNUSED_S / 86400)
            shutil.rmtree(path, ignore_errors=True)


def _is_unused(path: Path, oldest: float) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:  # another rank has just removed it
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_mtime < oldest
