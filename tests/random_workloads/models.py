"""The models of random workloads and their adapters: the demo model, and one with recurrent layers."""

from pathlib import Path

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..workers.tiny_models.made_adapters import ALL_LINEAR, make_adapter
from ..workers.tiny_models.made_eagle3 import write_head_for
from ..workers.tiny_models.tiny_lfm2 import write_tiny_lfm2

ADAPTERS = ("first", "second", "third")
RECURRENT = "recurrent"  # the form whose model has recurrent layers, with the demo model's tokenizer
OUTPUTS_REPEAT = 0.12  # scale of its weights, with which about half of the drafts from its own text are accepted
PROJECTIONS = {"": ALL_LINEAR, RECURRENT: ("q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3")}


class Models:
    """Writes them into `folder`, which must be empty."""

    def __init__(self, folder: Path):
        self._recurrent = folder / RECURRENT
        self._recurrent.mkdir()
        write_tiny_lfm2(self._recurrent, vocab_size=1024, max_position_embeddings=2048, scale=OUTPUTS_REPEAT)
        self._folders = {kind: folder / f"adapters {kind}" for kind in PROJECTIONS}
        for kind, projections in PROJECTIONS.items():
            for seed, name in enumerate(ADAPTERS):
                model = self._recurrent if kind else demo_model_folder()
                make_adapter(self._folders[kind] / name, model, seed=seed, rank=4 << seed, targets=projections)
        self.head = write_head_for(demo_model_folder(), folder / "head")  # EAGLE-3, almost never right

    def options(self, form: str) -> dict[str, str]:
        """The arguments of AsyncLLM that name the model of a form."""
        if form != RECURRENT:
            return {}
        return {"model": str(self._recurrent), "tokenizer": str(demo_model_folder())}

    def adapters(self, form: str) -> dict[str, Path]:
        """The folders of the adapters by name."""
        kind = form if form == RECURRENT else ""
        return {name: self._folders[kind] / name for name in ADAPTERS}
