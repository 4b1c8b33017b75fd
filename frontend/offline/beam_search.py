"""The beam search of LLM: all beams of all prompts are requested together, one token at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paged_serve.protocol.messages.engine_core import Welcome
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..text.beam_search import BeamSearch, BeamSearchParams
from ..text.beam_search import BeamSearchSequence as AnyBeamSearchSequence
from ..text.tokenizer import Tokenizer
from .outputs import Logprob, RequestOutput

# Generates one token for each beam, given the beams' tokens and the numbers of their prompts.
OneStep = Callable[[list[list[int]], list[int], SamplingParams], list[RequestOutput]]
BeamSearchSequence = AnyBeamSearchSequence[Logprob]


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The sequences of one prompt, the best first."""

    sequences: list[BeamSearchSequence]


def beam_search(
    one_step: OneStep,
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
    tokenizer: Tokenizer,
    limits: Welcome,
) -> list[BeamSearchOutput]:
    """Search all prompts together; sequences that fill the context end there. Raises InvalidRequest."""
    step = params.step_params()
    searches = [BeamSearch[Logprob](prompt, params, limits.eos_token_ids) for prompt in prompts]
    # The first step of a prompt that fills the context is refused like any other request.
    last_steps = [max(1, min(params.max_tokens, limits.max_model_len - len(prompt))) for prompt in prompts]
    for step_number in range(params.max_tokens):
        growing = [number for number, last in enumerate(last_steps) if step_number < last]
        asked = [(beam.tokens, number) for number in growing for beam in searches[number].beams]
        if not asked:
            break
        outputs = iter(one_step([tokens for tokens, _ in asked], [number for _, number in asked], step))
        for number in growing:
            search = searches[number]
            search.grow([(next(outputs).outputs[0].logprobs or [{}])[0] for _ in search.beams])
    return [BeamSearchOutput([_with_text(beam, params, tokenizer) for beam in each.best()]) for each in searches]


def _with_text(beam: BeamSearchSequence, params: BeamSearchParams, tokenizer: Tokenizer) -> BeamSearchSequence:
    hides_end = beam.finish_reason == "stop" and not params.include_stop_str_in_output
    shown = beam.tokens[:-1] if hides_end else beam.tokens
    skips = params.skip_special_tokens and not params.include_stop_str_in_output
    return replace(beam, text=tokenizer.decode(shown, skip_special_tokens=skips))
