"""Turns an adapter's matrices into a rank's shares, in one piece of memory, in the layout of the kernels."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paged_serve.protocol.adapter_folder import WEIGHTS_FILE
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.loading.adapters import Adapter

from ..checkpoint.adapters.deltas import ALIGNMENT, PANEL, Delta
from ..checkpoint.conversion import check_finite
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.text_part import decoder_name, has_other_parts, is_of_text, read_fields
from ..distributed.huge_pages import allocate
from ..layers.adapters.sites import Adapters, Site, SitePart
from .peft_folder import ModuleMatrices, SavedWeight, read_peft_folder


@dataclass(frozen=True, slots=True, eq=False)
class PlacedAdapter:
    """An adapter in this rank's memory, checked as a whole."""

    num_bytes: int
    deltas: Sequence[Sequence[Delta | None]]  # for each site, for each part


def place_adapter(adapter: Adapter, adapters: Adapters) -> PlacedAdapter:
    """Read, check and lay out `adapter`; it computes nothing for other threads to wait for.

    Raises ConfigError, naming the file and the field or tensor, before anything is kept.
    """
    path = Path(adapter.path) / WEIGHTS_FILE
    modules, saved = read_peft_folder(adapter, adapters.max_rank)
    if has_other_parts(adapters.folder):  # what an adapter changes in those has no effect on text
        fields = read_fields(adapters.folder)
        modules = {name: module for name, module in modules.items() if is_of_text(name, fields)}
    found = _matched(path, modules, adapters.sites)
    for weight in saved:
        _check_unchanged(path, weight, adapters)
    for module in modules.values():
        for side, values in module.sides.items():
            _check_numbers(path, module.names[side], values, adapters.dtype)
    sizes = list(_sizes(adapters, found))
    total = sum(_aligned(size) for size in sizes)
    memory = allocate((total,), torch.uint8)
    views = _views(memory, sizes)
    shapes: list[list[Delta | None]] = []
    for site, of_parts in zip(adapters.sites, found, strict=True):
        pairs = _pairs(views, sum(of_part is not None for of_part in of_parts))
        deltas: list[Delta | None] = []
        for index, (part, of_part) in enumerate(zip(site.parts, of_parts, strict=True)):
            deltas.append(None if of_part is None else _delta(site, index, part, of_part, next(pairs), adapters))
        shapes.append(deltas)
    return PlacedAdapter(total, shapes)


def _matched(
    path: Path, modules: Mapping[str, ModuleMatrices], sites: Sequence[Site]
) -> list[list[ModuleMatrices | None]]:
    """The module of each part of each site; every module has at least one."""
    by_name = {name: module for module in modules.values() for name in _aliases(module.name, module.is_table)}
    used: set[str] = set()
    found: list[list[ModuleMatrices | None]] = []
    for site in sites:
        of_site: list[ModuleMatrices | None] = []
        for part in site.parts:
            names = _aliases(part.name, site.deltas.shape.is_table)
            module = next((by_name[name] for name in names if name in by_name), None)
            if module is not None:
                used.add(module.name)
                _check_shapes(path, module, part.outputs, site.inputs)
            of_site.append(module)
        found.append(of_site)
    if unknown := sorted(modules.keys() - used):
        module = modules[unknown[0]]
        known = sorted({part.name.rpartition(".")[2] for site in sites for part in site.parts})
        raise ConfigError(
            f"{path}: tensor {module.names['A'][:200]!r} is for a module that adapters cannot change in this model; "
            f"they can change {', '.join(known)}"
        )
    return found


def _aliases(name: str, is_table: bool) -> list[tuple[str, bool]]:
    """The name in a decoder, and without its first component: checkpoints saved without a head lack the prefix."""
    name = decoder_name(name).removesuffix(".base_layer")
    _, _, rest = name.partition(".")
    return [(each, is_table) for each in (name, rest) if each]


def _check_shapes(path: Path, module: ModuleMatrices, outputs: int, inputs: int) -> None:
    for side, shape in (("A", (module.rank, inputs)), ("B", (outputs, module.rank))):
        if (found := tuple(module.sides[side].shape)) != shape:
            raise ConfigError(
                f"{path}: tensor {module.names[side][:200]!r} has shape {list(found)}, but the model asks for "
                f"{list(shape)}: this adapter is for another model"
            )


def _check_unchanged(path: Path, weight: SavedWeight, adapters: Adapters) -> None:
    """Raises ConfigError unless the weight is that of the base model, in its dtype; the head may be tied."""
    base = Checkpoint(adapters.folder) if list(adapters.folder.glob("model*.safetensors*")) else None
    names = [f"{name}.weight" for name, _ in _aliases(weight.module, False)]
    if weight.module.rpartition(".")[2] == "lm_head":
        names += [
            decoder_name(f"{part.name}.weight")
            for site in adapters.sites
            if site.deltas.shape.is_table
            for part in site.parts
        ]
    stored = {decoder_name(name): name for name in base.entries} if base is not None else {}
    name = next((stored[each] for each in names if each in stored), None)
    shape, is_equal = tuple(weight.values.shape), False
    if base is not None and name is not None and tuple(base.entries[name].shape) == shape:
        is_equal = torch.equal(base.read(name, shape).to(adapters.dtype), weight.values.to(adapters.dtype))
        base.close()
    if not is_equal:
        raise ConfigError(
            f"{path}: tensor {weight.name[:200]!r} replaces a whole weight of the model (modules_to_save, or a changed "
            "embedding); only LoRA matrices are supported: merge the adapter into its base model"
        )


def _check_numbers(path: Path, name: str, values: Tensor, dtype: torch.dtype) -> None:
    try:
        check_finite(name[:200], values.to(dtype), lambda: values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _sizes(adapters: Adapters, found: Sequence[Sequence[ModuleMatrices | None]]) -> Iterator[int]:
    """The bytes of each matrix, in order: the A's of a site's parts, then the B's, as kernels read them."""
    for site, of_parts in zip(adapters.sites, found, strict=True):
        shapes = (site.deltas.shape.sizes(i, module.rank) for i, module in enumerate(of_parts) if module is not None)
        for shape in itertools.chain(*zip(*shapes, strict=True)):
            yield torch.Size(shape).numel() * adapters.dtype.itemsize


def _views(memory: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    at = 0
    for size in sizes:
        yield memory[at : at + size]
        at += _aligned(size)


def _pairs(views: Iterator[Tensor], parts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The memory of A and of B of each part of a site, from the next `views`."""
    of_a, of_b = (list(itertools.islice(views, parts)) for _ in "AB")
    return zip(of_a, of_b, strict=True)


def _delta(
    site: Site, index: int, part: SitePart, module: ModuleMatrices, memory: tuple[Tensor, Tensor], adapters: Adapters
) -> Delta:
    """This rank's share, in the given memory of A and B."""
    shapes = site.deltas.shape.sizes(index, module.rank)
    a, b = (piece.view(adapters.dtype).view(shape) for piece, shape in zip(memory, shapes, strict=True))
    if site.deltas.shape.is_table:
        a.copy_(module.sides["A"].T)
    else:
        a[: module.rank].copy_(module.sides["A"][:, slice(*site.span)])
        a[module.rank :] = 0
    rows = module.sides["B"]
    if not torch.equal(part.rows, torch.arange(len(rows))):
        rows = rows[part.rows]
    whole, rest = divmod(len(rows), PANEL)
    b[:whole].copy_(rows[: whole * PANEL].view(whole, PANEL, module.rank).transpose(1, 2))
    b[whole:] = 0
    if rest:
        b[whole, :, :rest].copy_(rows[whole * PANEL :].T)
    return Delta(a.to(adapters.device), b.to(adapters.device), module.scale * part.multiplier)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
