"""The library's tensor-parallel plan of a model: the linear layers that ranks divide, by inputs or by outputs."""

import re
from collections.abc import Mapping
from typing import Literal

from paged_serve.protocol.errors import ConfigError

Style = Literal["whole", "column", "row"]
STYLES: dict[str, Style] = {
    "colwise": "column",
    "rowwise": "row",
    "replicate": "whole",
    "replicated_with_grad_allreduce": "whole",
}
LEFT_OUT = ("embedding_rowwise", "embedding_colwise")  # embeddings are divided by our own rule


class ParallelPlan:
    """Patterns of module names in the base model, with `*` for a layer's number."""

    def __init__(self, plan: Mapping[str, str] | None):
        self._plan = {name: style for name, style in (plan or {}).items() if style not in LEFT_OUT}

    def check(self, tp_size: int) -> None:
        """Raises ConfigError if the plan does not support `tp_size` ranks."""
        if tp_size == 1:
            return
        if not self._plan:
            raise ConfigError(
                f"tensor_parallel_size={tp_size} needs a plan (base_model_tp_plan), which its config lacks; use "
                "tensor_parallel_size=1"
            )
        for name, style in self._plan.items():
            if style not in STYLES:
                raise ConfigError(
                    f"tensor_parallel_size={tp_size}: its plan divides {name} by {style}; valid: {', '.join(STYLES)}"
                    "; use tensor_parallel_size=1"
                )

    def style(self, name: str) -> Style:
        """How the linear layer `name` of the base model is divided; "whole" if the plan's style is not supported."""
        found = self._plan.get(re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", name), "replicate")
        return STYLES.get(found, "whole")
