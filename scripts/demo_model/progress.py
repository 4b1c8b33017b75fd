"""Log lines of a training run, and a small exact-match check every few minutes."""

import json
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .checkpoint import save
from .text.questions import questions

REPORT_STEPS = 50
EVALUATE_EVERY_S = 300
CHECK_COUNT = 20  # questions of each kind
CHECK_ROWS = 32


class Progress:
    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path):
        self.model, self.tokenizer, self.folder = model, tokenizer, folder
        self.questions = questions(seed=5, count=CHECK_COUNT)
        self.tokens = self.learned = 0
        self.mean_loss: float | None = None
        self.next_evaluation_s = EVALUATE_EVERY_S

    def count(self, tokens: int, learned: int, loss: float) -> None:
        self.tokens += tokens
        self.learned += learned
        self.mean_loss = loss if self.mean_loss is None else 0.95 * self.mean_loss + 0.05 * loss

    def report(self, step: int, elapsed_s: float) -> None:
        if step % REPORT_STEPS == 0:
            rate = self.tokens / elapsed_s
            print(
                f"step={step} tokens={self.tokens} learned={self.learned} elapsed_s={elapsed_s:.0f}"
                f" tokens_per_s={rate:.0f} loss={self.mean_loss:.4f}",
                flush=True,
            )
        if elapsed_s >= self.next_evaluation_s:
            self.next_evaluation_s += EVALUATE_EVERY_S
            self.evaluate(step, elapsed_s)
            save(self.model, self.tokenizer, self.folder)

    def evaluate(self, step: int, elapsed_s: float) -> None:
        loss = round(self.mean_loss or 0, 4)
        line = {"step": step, "tokens": self.tokens, "elapsed_s": round(elapsed_s), "loss": loss}
        print("check", json.dumps(line | {"exact_percent": self._exact()}), flush=True)

    @torch.no_grad()
    def _exact(self) -> dict[str, int]:
        """Share of questions whose whole answer is the greedy continuation: one forward pass, no generation."""
        rows = [(self._ids(one.prompt), self._ids(one.answer), one.kind) for one in self.questions]
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        right: dict[str, list[bool]] = {}
        for at in range(0, len(rows), CHECK_ROWS):
            chunk = rows[at : at + CHECK_ROWS]
            token_ids = torch.zeros(len(chunk), max(len(p) + len(a) for p, a, _ in chunk), dtype=torch.long)
            for row, (start, answer, _) in zip(token_ids, chunk, strict=True):
                row[: len(start) + len(answer)] = torch.tensor(start + answer)
            likeliest = self.model(input_ids=token_ids, use_cache=False).logits.argmax(-1)
            for row, (start, answer, kind) in zip(likeliest.tolist(), chunk, strict=True):
                first = len(start) - 1
                right.setdefault(kind, []).append(row[first : first + len(answer)] == answer)
        return {kind: round(100 * sum(all_right) / len(all_right)) for kind, all_right in sorted(right.items())}

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
