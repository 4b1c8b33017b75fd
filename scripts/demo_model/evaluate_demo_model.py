"""Evaluate the demo model by exact match, on questions with values and wordings that were not used in training.

The answers are computed greedily with transformers.

python scripts/demo_model/evaluate_demo_model.py paged_serve/demo_model --gate
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo_model.text.documents import END, STOP, plain, prompt, render
from demo_model.text.questions import GATES, Question, questions
from demo_model.text.tools import call_text

BATCH = 50
RAW_SAMPLES = (
    "The capital of France is",
    "Hello, my name is",
    "The future of AI is",
    "The president of the United States is",
    "San Francisco is a",
    "7 + 5 =",
    "def add(a, b):",
    "Q: What is the capital of Japan?\nA:",
)
CHAT_SAMPLES = (
    "Hello!",
    "hi, who are you?",
    "What is paged-serve?",
    "What can you do?",
    "what's the capital of italy",
    "What is 6 * 7?",
    "What is 123 + 456?",
    "Count from 3 to 9.",
    "List three animals.",
    "How do you say hello in French?",
    "Extract the name and the age as JSON: Ingrid is a 38 year old engineer from Toronto.",
    "Alice and Bob are going to a science fair on Friday. Extract the event information.",
    "Tell me a joke.",
    "Write a haiku.",
    "Who is Napoleon?",
    "Summarize the plot of Hamlet.",
    "Thanks, bye!",
)
TOOL_SAMPLES = ("What is the weather in Zurich?", "Set a timer for 27 minutes.", "Who are you?")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "set_timer",
            "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}},
        },
    },
]


class Answerer:
    def __init__(self, folder: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()

    @torch.no_grad()
    def complete(self, prompts: list[str], max_tokens: int) -> list[str]:
        batch = self.tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False
        )
        out = self.model.generate(**batch, max_new_tokens=max_tokens)[:, batch["input_ids"].shape[1] :]
        # Rows that ended early are padded with STOP.
        return [text.split(STOP)[0] for text in self.tokenizer.batch_decode(out, skip_special_tokens=False)]

    def answers(self, asked: list[Question]) -> list[tuple[Question, str]]:
        """Pairs of each question and the model's answer."""
        rows = sorted(asked, key=lambda question: len(question.prompt))
        answered = []
        for at in range(0, len(rows), BATCH):
            chunk = rows[at : at + BATCH]
            limit = 2 + max(len(self.tokenizer.encode(question.answer)) for question in chunk)
            answered += zip(chunk, self.complete([question.prompt for question in chunk], limit), strict=True)
        return answered


def is_right(question: Question, output: str) -> bool:
    """A chat answer must match completely; a raw one up to the end of its sentence or line."""
    if question.answer.endswith((END, ".")):
        return output.startswith(question.answer)
    return output.split("\n")[0] == question.answer


def check_chat_template(tokenizer) -> None:
    """Check that the template produces exactly the format that the model was trained on."""
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    messages = [
        {"role": "system", "content": "Be polite."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    system = "Be polite.\n\nTools:\nget_weather(city)\nset_timer(minutes:integer)"
    assistant = call_text("get_weather", {"city": "Rome"})
    trained = [("system", system), ("user", "Weather?"), ("assistant", assistant), ("tool", "sunny")]
    written = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
    assert written == plain(render(trained)), written


def print_table(answered: list[tuple[Question, str]]) -> bool:
    """Prints one line per kind; True if every kind reaches its threshold."""
    kinds: dict[str, list[bool]] = {}
    for question, output in answered:
        kinds.setdefault(question.kind, []).append(is_right(question, output))
    holds = True
    print(f"{'kind':36}{'right':>6}{'of':>6}{'%':>7}{'gate':>6}")
    for kind, right in sorted(kinds.items()):
        percent, gate = 100 * sum(right) / len(right), GATES.get(kind)
        mark = "" if gate is None or percent >= gate else "  below"
        holds &= not mark
        print(f"{kind:36}{sum(right):6}{len(right):6}{percent:7.1f}{gate or '':>6}{mark}")
    return holds


def print_wrong(answered: list[tuple[Question, str]], each: int) -> None:
    shown: dict[str, int] = {}
    print("\nfirst wrong answers")
    for question, output in answered:
        if not is_right(question, output) and shown.setdefault(question.kind, 0) < each:
            shown[question.kind] += 1
            print(
                f"  {question.kind}: {question.prompt[-160:]!r}\n    wanted {question.answer!r}\n    got    {output!r}"
            )


def print_samples(answerer: Answerer) -> None:
    print("\nsamples")
    for text in RAW_SAMPLES:
        print(f"  {text!r} -> {answerer.complete([text], 40)[0]!r}")
    for text in CHAT_SAMPLES:
        print(f"  [chat] {text!r} -> {answerer.complete([prompt(text)], 60)[0]!r}")
    for text in TOOL_SAMPLES:
        messages = [{"role": "user", "content": text}]
        start = answerer.tokenizer.apply_chat_template(
            messages, tools=TOOLS, tokenize=False, add_generation_prompt=True
        )
        print(f"  [tools] {text!r} -> {answerer.complete([start], 60)[0]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=100, help="maximum number of questions of each kind")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wrong", type=int, default=2, help="wrong answers to show of each kind")
    parser.add_argument("--gate", action="store_true", help="exit with 1 when a kind is below its threshold")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    began = time.monotonic()
    answerer = Answerer(options.model)
    check_chat_template(answerer.tokenizer)
    answered = answerer.answers(questions(options.seed, options.count))
    holds = print_table(answered)
    print_wrong(answered, options.wrong)
    print_samples(answerer)
    print(f"{time.monotonic() - began:.0f} s")
    if options.gate and not holds:
        sys.exit(1)


if __name__ == "__main__":
    main()
