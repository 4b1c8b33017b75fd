"""The beam search of LLM: all beams of all prompts are requested together, one token at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..text import beam_search as search
from ..text.beam_search import BeamSearch, BeamSearchParams
from ..text.tokenizer import Tokenizer
from .outputs import Logprob, RequestOutput

# Generates one token for each beam, given the beams' tokens and the numbers of their prompts.
OneStep = Callable[[list[list[int]], list[int], SamplingParams], list[RequestOutput]]
BeamSearchSequence = search.BeamSearchSequence[Logprob]


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The sequences of one prompt, the best first."""

    sequences: list[BeamSearchSequence]


def beam_search(
    one_step: OneStep, prompts: Sequence[list[int]], params: BeamSearchParams, tokenizer: Tokenizer
) -> list[BeamSearchOutput]:
    """Search all prompts together. Raises InvalidRequest."""
    step = params.step_params()
    searches = [BeamSearch[Logprob](prompt, params, tokenizer.eos_token_ids) for prompt in prompts]
    for _ in range(params.max_tokens):
        asked = [(beam.tokens, number) for number, each in enumerate(searches) for beam in each.beams]
        if not asked:
            break
        outputs = iter(one_step([tokens for tokens, _ in asked], [number for _, number in asked], step))
        for each in searches:
            each.grow([(next(outputs).outputs[0].logprobs or [{}])[0] for _ in each.beams])
    return [BeamSearchOutput([_with_text(beam, params, tokenizer) for beam in each.best()]) for each in searches]


def _with_text(beam: BeamSearchSequence, params: BeamSearchParams, tokenizer: Tokenizer) -> BeamSearchSequence:
    hides_end = beam.finish_reason == "stop" and not params.include_stop_str_in_output
    shown = beam.tokens[:-1] if hides_end else beam.tokens
    return replace(beam, text=tokenizer.decode(shown, skip_special_tokens=not params.include_stop_str_in_output))
