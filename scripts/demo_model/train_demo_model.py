"""Train the demo model, from scratch or from a checkpoint, on generated text; writes the checkpoint folder.

python scripts/demo_model/train_demo_model.py --output build/first --minutes 105 --threads 2
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo_model.checkpoint import load, save
from demo_model.network import hidden_states, make_model, rotary, start_by_looking_back
from demo_model.optimizer import Optimizer
from demo_model.packing import Batch, Packer
from demo_model.progress import Progress
from demo_model.text.documents import TextSource
from demo_model.tokenizer import letter_pieces, make_tokenizer

VOCABULARY = 1024
ROWS, LENGTH = 16, 256
LONG_ROWS, LONG_LENGTH, LONG_EVERY = 4, 1024, 8
COPY_SHARE = 0.08  # share of the run with mostly copying
SHORT_SHARE = 0.25  # share of the run before long rows are added
HOLD_SHARE = 0.35  # share of the run before the learning rate falls
WARM_UP_STEPS = 30


class Trainer:
    def __init__(self, seed: int, start_from: Path | None):
        torch.manual_seed(seed)
        self.tokenizer = make_tokenizer(VOCABULARY)
        stop_ids = [self.tokenizer.eos_token_id, self.tokenizer.pad_token_id]
        self.model = make_model(VOCABULARY, stop_ids, self.tokenizer.pad_token_id)
        start_by_looking_back(self.model)
        self.is_new = start_from is None
        if start_from is not None:
            load(self.model, self.tokenizer, start_from)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = Optimizer(self.model)
        pieces = letter_pieces(self.tokenizer)
        self.packer = Packer(self.tokenizer, TextSource(random.Random(seed + 100), pieces), ROWS, LENGTH)
        long_source = TextSource(random.Random(seed + 200), pieces)
        self.long_packer = Packer(self.tokenizer, long_source, LONG_ROWS, LONG_LENGTH, long_documents=True)
        self.cos, self.sin = rotary(LONG_LENGTH, self.model.config)
        self.forward = torch.compile(hidden_states, dynamic=False)

    def step(self, number: int, share: float, peak_rate: float) -> tuple[float, int]:
        """One update; `share` is how much of the run is over. Returns the loss and the number of learned tokens."""
        is_long = share > SHORT_SHARE and number % LONG_EVERY == 0
        batch = (self.long_packer if is_long else self.packer).batch(self.is_new and share < COPY_SHARE)
        loss, learned = self.loss(batch)
        loss.backward()
        self.optimizer.step(peak_rate * learning_rate(number, share))
        return loss.item(), learned

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        weights = {name: p.bfloat16() for name, p in self.parameters.items()}
        length = batch.token_ids.shape[1]
        x = self.forward(weights, batch.token_ids, batch.bias, self.cos[:length], self.sin[:length], self.model.config)
        targets = batch.targets.view(-1)
        learned = targets >= 0
        logits = functional.linear(x.flatten(0, 1)[learned], weights["model.embed_tokens.weight"]).float()
        return functional.cross_entropy(logits, targets[learned]), int(learned.sum())

    def warm_up_compiler(self) -> None:
        for packer in (self.packer, self.long_packer):
            loss, _ = self.loss(packer.batch(copy_first=False))
            loss.backward()
        self.model.zero_grad(set_to_none=True)


def learning_rate(step: int, share: float) -> float:
    """The learning rate: it rises, stays constant, and falls to zero at the end of the run."""
    falling = 1.0 if share < HOLD_SHARE else (1 - share) / (1 - HOLD_SHARE)
    return min(1.0, (step + 1) / WARM_UP_STEPS) * max(falling, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=105, help="duration without tokenizer and compiler")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start-from", type=Path, help="folder of a checkpoint of this script, to continue from")
    parser.add_argument("--peak-rate", type=float, default=1.0, help="factor of the learning rate; lower to continue")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainer = Trainer(options.seed, options.start_from)
    trainer.warm_up_compiler()
    progress = Progress(trainer.model, trainer.tokenizer, options.output)
    started, step, share = time.monotonic(), 0, 0.0
    while share < 1:
        loss, learned = trainer.step(step, share, options.peak_rate)
        step += 1
        progress.count(ROWS * LENGTH, learned, loss)
        elapsed_s = time.monotonic() - started
        progress.report(step, elapsed_s)
        share = elapsed_s / (options.minutes * 60)
    save(trainer.model, trainer.tokenizer, options.output)
    progress.evaluate(step, time.monotonic() - started)


if __name__ == "__main__":
    main()
