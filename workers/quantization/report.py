"""Figures on the quantization of a model, for users."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from ..checkpoint.weight_forms import StoredWeight, Weight, form_of


@dataclass(slots=True)
class QuantizationReport:
    """The report of one rank. Errors are known only for matrices quantized on load, since these have float weights."""

    bytes_per_float: int
    forms: dict[str, int] = field(default_factory=dict)  # form -> number of matrices
    num_outputs: int = 0  # rows of the quantized matrices
    bytes_before: int = 0  # of the quantized matrices if they were float
    bytes_after: int = 0
    errors: dict[str, float] = field(default_factory=dict)  # matrix -> relative root-mean-square error

    def count(self, read: Weight, held: Weight) -> None:
        """Count a matrix, which was read as `read` and is held by the backend as `held`."""
        form = form_of(read) if form_of(read) == form_of(held) else f"{form_of(read)} held as float"
        if isinstance(read, StoredWeight) and read.blocks:
            form = f"{read.blocks} held as float"
        self.forms[form] = self.forms.get(form, 0) + 1
        if not isinstance(read, Tensor | StoredWeight):
            self.num_outputs += read.shape[0]
            self.bytes_before += math.prod(read.shape) * self.bytes_per_float
            self.bytes_after += held.nbytes

    def error(self, name: str, lost: float, there: float) -> None:
        """Record the sums of squares of a matrix's error and of its weights."""
        self.errors[name] = math.sqrt(lost / there) if there else 0.0

    def facts(self) -> dict[str, str]:
        """The figures by name; empty if nothing is quantized."""
        if self.forms.keys() <= {"float"}:
            return {}
        counts = (
            f"{count} {'matrix' if count == 1 else 'matrices'} {form}" for form, count in sorted(self.forms.items())
        )
        facts = {"quantization": ", ".join(counts)}
        if self.bytes_after:
            facts["quantized_outputs"] = str(self.num_outputs)
            facts["quantized_bytes"] = f"{self.bytes_before} before, {self.bytes_after} after"
        if self.errors:
            worst = max(self.errors, key=lambda name: self.errors[name])
            mean = sum(self.errors.values()) / len(self.errors)
            facts["quantization_error"] = f"relative RMS {mean:.4f} mean, {self.errors[worst]:.4f} worst ({worst})"
        return facts
