"""Average the weights of several checkpoints of one model; the average scores better than each of them.

python scripts/demo_model/average_demo_model.py build/demo_model build/demo_model_2 --output paged_serve/demo_model

The checkpoints must come from one training run and its continuations, each of which ended with a learning rate of zero
(stochastic weight averaging: Izmailov et al. 2018, arXiv:1803.05407).
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo_model.checkpoint import load, save
from demo_model.tokenizer import make_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+", help="folders that train_demo_model.py wrote")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    first = options.checkpoints[0]
    model = AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    tokenizer = make_tokenizer(model.config.vocab_size)
    sums = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for folder in options.checkpoints:
        load(model, tokenizer, folder)
        for name, value in model.state_dict().items():
            sums[name] += value
    model.load_state_dict({name: total / len(options.checkpoints) for name, total in sums.items()})
    save(model, tokenizer, options.output)


if __name__ == "__main__":
    main()
