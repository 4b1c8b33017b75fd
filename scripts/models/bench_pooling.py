"""Embeddings: texts per second, compared with sentence-transformers on the same CPU.

    python scripts/models/bench_pooling.py --peer-python ~/st-venv/bin/python [--models mini,base,qwen3] [--rounds 5]

Models with random float32 weights are written to a temporary folder, with the files of sentence-transformers: a BERT of
MiniLM-L6's size, one of BERT-base's, and a Qwen3 decoder that pools the last token, each with a tokenizer of whole
words. Both systems get the same texts of 16 to 256 tokens, 32 in a batch, and the same number of threads. Two loads:
`call`, 32 texts in one call, and `calls`, 128 texts in one call, which sentence-transformers sorts by length before it
divides them into batches of 32, so that it pads little. Our side is the whole server behind LLM.

A round measures one system after the other, with new texts. The results are the medians of the rounds, the median of
their ratios, and over all texts the smallest cosine and the number of signs that differ. Matrix products limit both:
the floor is 2 flop per weight and token. sentence-transformers is not a dependency of paged-serve, so it runs in a
separate interpreter.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

BATCH = 32
LOADS = {"call": BATCH, "calls": 4 * BATCH}  # texts of a call
SHORTEST, LONGEST = 16, 256  # tokens
WORDS = 8192
BERT_OF = {
    "mini": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12},
    "base": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
QWEN3 = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8} | {
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}


def texts(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    lengths = random.integers(SHORTEST - 2, LONGEST - 1, count)  # two special tokens are added
    return [" ".join(f"w{word}" for word in random.integers(0, WORDS, length).tolist()) for length in lengths.tolist()]


def write_model(folder: Path, name: str) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocab = {word: index for index, word in enumerate([*specials, *(f"w{number}" for number in range(WORDS))])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    tokens = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), specials, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(vocab), "pad_token_id": 0}
    if name in BERT_OF:
        model = transformers.BertModel(transformers.BertConfig(**BERT_OF[name], **sizes))
    else:
        model = transformers.Qwen3Model(transformers.Qwen3Config(**QWEN3, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)
    types = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(types, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Normalize").mkdir()
    (folder / "1_Pooling").mkdir()
    mode = "pooling_mode_mean_tokens" if name in BERT_OF else "pooling_mode_lasttoken"
    pooling = {"word_embedding_dimension": model.config.hidden_size, mode: True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": False} | pooling))


def peer(folder: str, threads: int) -> None:
    """Answer each line of JSON, [count, seed, file], with the seconds of one call; its vectors go to `file`."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    for line in sys.stdin:
        count, seed, file = json.loads(line)
        given = texts(count, seed)
        began = time.perf_counter()
        vectors = model.encode(given, batch_size=BATCH, show_progress_bar=False)
        seconds = time.perf_counter() - began
        np.asarray(vectors, np.float32).tofile(file)
        print(json.dumps(seconds), flush=True)


class Peer:
    """sentence-transformers in its own interpreter."""

    def __init__(self, python: str, folder: Path, threads: int):
        command = [python, __file__, "--peer", str(folder), "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._file = folder / "vectors.float32"

    def __call__(self, count: int, seed: int) -> tuple[float, Any]:
        self._pipe(self._process.stdin).write(json.dumps([count, seed, str(self._file)]) + "\n")
        self._pipe(self._process.stdin).flush()
        seconds = json.loads(self._pipe(self._process.stdout).readline())
        return seconds, np.fromfile(self._file, np.float32).reshape(count, -1)

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None, "it has pipes"
        return pipe


def measured(name: str, python: str, loads: list[str], rounds: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    from paged_serve import LLM

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder, name)
        other = Peer(python, folder, options["threads"])
        try:
            with LLM(str(folder), **options) as llm:

                def ours(count: int, seed: int) -> tuple[float, Any]:
                    given = texts(count, seed)
                    began = time.perf_counter()
                    outputs = llm.embed(given, use_tqdm=False)
                    vectors = np.array([output.outputs.embedding for output in outputs], np.float32)
                    return time.perf_counter() - began, vectors

                for side in (ours, other):
                    side(BATCH, 0)  # to warm up
                return [row(name, load, LOADS[load], rounds, ours, other) for load in loads]
        finally:
            other.close()


def row(name: str, load: str, count: int, rounds: int, ours: Any, theirs: Any) -> dict[str, Any]:
    times = []
    cosine, signs, size = 1.0, 0, 0
    for seed in range(1, rounds + 1):
        (seconds, found), (their_seconds, expected) = ours(count, seed), theirs(count, seed)
        times.append((seconds, their_seconds))
        cosine = min(cosine, float((found.astype(np.float64) * expected).sum(1).min()))
        signs += int((np.sign(found) != np.sign(expected)).sum())
        size += found.size
    ours_s, theirs_s = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "model": name,
        "load": load,
        "ours, texts/s": count / ours_s,
        "theirs, texts/s": count / theirs_s,
        "ratio": statistics.median(their / our for our, their in times),
        "least ratio": min(their / our for our, their in times),
        "cosine": cosine,
        "other signs": f"{signs} of {size}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with sentence-transformers")
    parser.add_argument("--models", default="mini,base,qwen3")
    parser.add_argument("--loads", default="call,calls")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32", help="ours; the peer's is float32")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(given.peer, given.threads)
        return
    options = {"dtype": given.dtype, "threads": given.threads, "max_num_seqs": BATCH}
    loads, rows = given.loads.split(","), list[dict[str, Any]]()
    for name in given.models.split(","):
        rows += measured(name, given.peer_python, loads, given.rounds, options)
        print(json.dumps(rows), flush=True)
    print("  ".join(f"{name:>16s}" for name in rows[0]))
    for each in rows:
        print("  ".join(f"{cell:16.4f}" if isinstance(cell, float) else f"{cell:>16s}" for cell in each.values()))


if __name__ == "__main__":
    main()
