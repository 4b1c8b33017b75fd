"""Keywords of parameters in programs: those of vLLM without an effect here, and the reason why others are refused."""

import difflib
from typing import Any, NamedTuple

import msgspec

from .errors import InvalidRequest


class Keyword(NamedTuple):
    """A keyword of vLLM that is no field here."""

    instead: str = ""  # why it is refused, and what to use
    nothing: tuple[Any, ...] = ()  # values without an effect, in addition to None
    any_value: bool = False  # whether no value has an effect


_EXTRA = "dry=Dry(…) and xtc=Xtc(…) are fields; arguments of a plugin go to logits_processors"
_TRUNCATION = "pass tokenization_kwargs={%r: …} to the method that gets the prompt"
_BEAMS = "use LLM.beam_search with BeamSearchParams"
_PROMPT_LOGPROBS = "use prompt_logprobs"
_ACTIVATION = "use use_activation"
KEYWORDS = {
    "activation": Keyword(_ACTIVATION),
    "early_stopping": Keyword(_BEAMS, (False,)),
    "extra_args": Keyword(_EXTRA, ({},)),
    "extra_kwargs": Keyword("there are no further arguments", ({},)),
    "guided_decoding": Keyword("use structured_outputs=StructuredOutputsParams(…)"),
    "length_penalty": Keyword(_BEAMS, (1.0,)),
    "normalize": Keyword(_ACTIVATION),
    "output_text_buffer_length": Keyword(any_value=True),
    "prompt_logprob_start": Keyword(_PROMPT_LOGPROBS),
    "prompt_logprob_token_ids": Keyword(_PROMPT_LOGPROBS),
    "requires_token_ids": Keyword(any_value=True),
    "routed_experts_prompt_start": Keyword("the experts of tokens are not returned", (0,)),
    "skip_clone": Keyword(any_value=True),
    "softmax": Keyword(_ACTIVATION),
    "spaces_between_special_tokens": Keyword(any_value=True),  # the tokens determine the text
    "stream_interval": Keyword("an output has all tokens since the one before; read slower, or use output_kind", (1,)),
    "trace_decode_token_ids": Keyword("tokens are sampled; to score known ones, use prompt_logprobs"),
    "truncate_prompt_tokens": Keyword(_TRUNCATION % "truncate_prompt_tokens"),
    "truncation_side": Keyword(_TRUNCATION % "truncation_side"),
    "use_beam_search": Keyword(_BEAMS, (False,)),
    "vllm_xargs": Keyword(_EXTRA, ({},)),
    "watermarking": Keyword("outputs have no watermark", (False,)),
}


_NONE_IS_A_VALUE = {"max_tokens"}  # until the context is full
MAX_BIAS = 100.0  # of vLLM's from_optional


class WithKeywords(msgspec.StructMeta):
    """The class of a Struct whose constructor reads keywords as the server reads the fields of a body: None stands for
    the default, and an unknown keyword is refused with what to use instead. Decoding does not pass through it."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        fields, known = self.__struct_fields__, dict[str, Any]()
        for name, value in given.items():
            if value is None and name not in _NONE_IS_A_VALUE and (name in fields or name in KEYWORDS):
                continue
            if name in fields:
                known[name] = value
            else:
                _check_ignored(name, value, (*fields, *KEYWORDS), self.__name__)
        return super().__call__(*args, **known)


def _check_ignored(name: str, value: Any, known: tuple[str, ...], owner: str) -> None:
    """Raises InvalidRequest unless the keyword's value has no effect."""
    if name not in KEYWORDS:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidRequest(f"{owner} has no {name}{hint}", name)
    keyword = KEYWORDS[name]
    if not keyword.any_value and not any(type(value) is type(same) and value == same for same in keyword.nothing):
        raise InvalidRequest(f"{name} is {value!r:.100}, which is not supported: {keyword.instead}", name)


def bounded_bias(logit_bias: dict[Any, Any]) -> dict[Any, Any]:
    """Texts of digits as token ids, and numbers within MAX_BIAS; what is neither is left to the check of the field."""

    def token_id(token: Any) -> Any:
        return int(token) if isinstance(token, str) and token.isdecimal() and token.isascii() else token

    def bounded(bias: Any) -> Any:
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        return min(max(bias, -MAX_BIAS), MAX_BIAS) if is_number else bias

    return {token_id(token): bounded(bias) for token, bias in logit_bias.items()}
