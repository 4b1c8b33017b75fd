"""lm-eval's models for completions and chats, with the server's tokenizer, against the server at argv[1]."""

import json
import sys
from urllib.request import Request, urlopen

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from questions import QUESTION, check_text

URL = f"{sys.argv[1]}/v1"
CONTEXT = "The capital of France is"


def instance(kind: str, *arguments: object) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def logprobs_of(tokens: list[int]) -> list[dict]:
    """Of each token of a prompt but the first, and of the most likely token there."""
    body = json.dumps({"model": "demo", "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 1}).encode()
    with urlopen(Request(f"{URL}/completions", body, {"Content-Type": "application/json"})) as response:
        return json.load(response)["choices"][0]["prompt_logprobs"][1:]


model = LocalCompletionsAPI(base_url=f"{URL}/completions", model="demo", tokenizer_backend="auto")
assert model.tokenizer_backend == "remote"  # it has found /tokenizer_info and /tokenize
for continuation in (" Paris.", " Rome."):
    [(total, is_greedy)] = model.loglikelihood([instance("loglikelihood", CONTEXT, continuation)])
    tokens, num_before = model.tok_encode(CONTEXT + continuation), len(model.tok_encode(CONTEXT))
    scored = [*zip(tokens[1:], logprobs_of(tokens), strict=True)][num_before - 1 :]
    assert total == sum(entry[str(token)]["logprob"] for token, entry in scored)
    assert is_greedy == all(entry[str(token)]["rank"] == 1 for token, entry in scored)

until = {"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False}
assert "Paris" in model.generate_until([instance("generate_until", CONTEXT, until)])[0]
chat = LocalChatCompletion(base_url=f"{URL}/chat/completions", model="demo")
question = chat.apply_chat_template([{"role": "user", "content": QUESTION}])
check_text(chat.generate_until([instance("generate_until", question, until)])[0])
