"""Published files of A.X K1 lack the correction of scores, and have in dense layers a norm that these do not use."""

from safetensors.torch import load_file, save_file

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, reference_logits, transformers_model, write_checkpoint

NORM = "model.layers.{}.post_mlp_layernorm.weight"


def test_published_files_have_other_tensors_than_those_of_transformers(tmp_path):
    write_checkpoint("axk1", tmp_path)
    file, prompt = tmp_path / "model.safetensors", random_tokens(40)
    tensors = {name: each for name, each in load_file(file).items() if not name.endswith("correction_bias")}
    save_file(tensors | {NORM.format(1): 2 * tensors[NORM.format(0)]}, file, {"format": "pt"})
    expected = reference_logits(transformers_model(tmp_path), prompt)
    loop = PagedLoop(ours(tmp_path))
    assert (loop.prefill(loop.row(prompt)) - expected).abs().max() < 1e-4 * expected.abs().max()
