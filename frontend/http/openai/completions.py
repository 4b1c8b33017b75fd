"""POST /v1/completions: continues prompts, given as a text, tokens, or a list of either."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ...admission import (
    check_num_named_tokens,
    check_num_prompt_logprobs,
    check_num_sequences,
    check_num_shown_prompt_tokens,
    fitting_max_tokens,
)
from ...parsers.thinking import with_thinking
from ...text.detokenizer import Detokenizer
from ..exchange.sse import AnswerHead, Frames
from ..service import Service
from . import logprobs
from .answers import Completion, CompletionChoice, CompletionLogprobs, Usage
from .generation import Generation, Prompt
from .pieces import Piece
from .request.best_of import check_best_of
from .request.infill import with_suffix
from .request.prompts import split_prompt
from .request.sampling_params import COMPLETION_MAX_TOKENS, completion_params, size_of_work
from .request.schemas import CompletionRequest, without_prompt
from .request.structured_outputs import grammar_of
from .request.truncation import limit_of
from .streaming.frames import Extras, framed, warnings_of


async def completion_prompts(service: Service, body: CompletionRequest, raw: bytes, moment: int) -> list[Prompt]:
    """All prompts with their parameters; `raw`: the JSON of the body.

    Raises InvalidRequest or HttpError for a request that cannot be served.
    """
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens is 0; only a completion with echo may have no output", "max_tokens")
    limit = limit_of(service, body, max(COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens, 1))
    given = split_prompt(body.prompt, limit)
    check_best_of(body)
    check_num_sequences(len(given), body.best_of or body.n or 1)
    grammar, warnings = await grammar_of(service, body)
    body, encoded = await with_suffix(service, body, given, limit)
    prompts = []
    params: dict[int | None, SamplingParams] = {}  # by max_tokens; often the same for all prompts
    for text, ids in zip(given, encoded, strict=True):
        max_tokens = fitting_max_tokens(
            len(ids), body.max_tokens, COMPLETION_MAX_TOKENS, service.max_model_len, "prompt"
        )
        if max_tokens not in params:
            params[max_tokens] = await service.off_loop(
                size_of_work(body, len(raw)), completion_params, service, body, max_tokens, grammar
            )
            params[max_tokens].check_vocabulary(service.engine.limits.vocab_size)
            check_num_named_tokens(params[max_tokens], len(given))
        is_whole = limit.kept is None or len(ids) < limit.kept
        shown = text if body.echo and isinstance(text, str) and is_whole else None
        own = with_thinking(params[max_tokens], service.formats, service.tokenizer, ids)
        prompts.append(Prompt(array("i", ids), own, shown, warnings))
    num_shown = sum(len(prompt.token_ids) for prompt in prompts) * (body.n or 1)
    check_num_prompt_logprobs(prompts[0].params, num_shown)
    if body.echo or body.return_token_ids:
        check_num_shown_prompt_tokens(num_shown, "echo" if body.echo else "return_token_ids")
    return prompts


@dataclass(frozen=True, slots=True)
class _Echo:
    """A prompt that its choices repeat."""

    text: str
    logprobs: CompletionLogprobs | None


class CompletionWriter:
    """Turns the pieces of all choices into one answer or into frames."""

    def __init__(self, service: Service, body: CompletionRequest, prompts: list[Prompt], generation: Generation):
        self._service = service
        self._body = without_prompt(body)
        self._prompts = prompts
        self._n = prompts[0].params.n
        self._generation = generation
        self._hides_output = body.max_tokens == 0
        count = len(prompts) * self._n
        self._begun = [False] * count
        self._logprobs = [self._logprobs_writer(prompts[i // self._n].token_ids) for i in range(count)]
        self._echoes: dict[int, _Echo] = {}  # by prompt

    async def answer(self, head: AnswerHead) -> Completion:
        """The whole answer."""
        choices = [CompletionChoice(index=i, text="") for i in range(len(self._begun))]
        texts: list[list[str]] = [[] for _ in choices]
        async for batch in self._generation.batches():
            for piece in batch:
                part = await self._choice(piece)
                texts[piece.choice].append(part.text)
                _append(choices[piece.choice], part)
        for choice in choices:
            choice.text = "".join(texts[choice.index])
        for number, entries in enumerate(self._generation.prompt_logprobs):
            of_prompt = await logprobs.prompt_logprobs(self._service, entries, self._body.prompt_logprobs)
            for choice in choices[number * self._n : (number + 1) * self._n]:
                choice.prompt_logprobs = UNSET if of_prompt is None else of_prompt
        return Completion(
            id=head.answer_id,
            object="text_completion",
            created=head.created,
            model=head.model,
            choices=choices,
            usage=self._usage(),
            system_fingerprint=self._generation.fingerprint,
            timings=self._generation.timings() if self._body.timings_per_token else UNSET,
            warnings=head.warnings or UNSET,
        )

    def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]:
        """The answer as server-sent events, in lists of those available at a time."""

        async def chunks(piece: Piece) -> list[CompletionChoice]:
            choice = await self._choice(piece)
            return [choice] if choice.text or choice.logprobs or choice.finish_reason or choice.token_ids else []

        generation = self._generation
        timings = generation.timings if self._body.timings_per_token else None
        extras = Extras(self._body.stream_options, self._usage, timings, generation.fingerprint)
        frames = Frames(head, "text_completion")
        return framed(frames, generation.batches(), chunks, first=warnings_of(head), extras=extras)

    def _usage(self) -> Usage:
        usage = self._generation.usage()
        if self._hides_output:
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    async def _choice(self, piece: Piece) -> CompletionChoice:
        """One piece as a choice of the answer; the first piece of a choice includes the echo."""
        number = piece.choice // self._n
        first = not self._begun[piece.choice]
        self._begun[piece.choice] = True
        choice = CompletionChoice(index=piece.choice, text="" if self._hides_output else piece.text)
        if piece.finish_reason is not None:
            choice.finish_reason = "length" if self._hides_output else piece.finish_reason.api_name
            choice.stop_reason = None if self._hides_output else piece.stop_reason
        if self._body.return_token_ids:
            choice.token_ids = [] if self._hides_output else piece.token_ids
            if first:
                choice.prompt_token_ids = self._prompts[number].token_ids.tolist()
        writer = self._logprobs[piece.choice]
        echo = await self._echo(number) if first and self._body.echo else None
        if echo is not None:
            choice.text = echo.text + choice.text
            choice.logprobs = echo.logprobs
            writer.offset = len(echo.text)
        entries = piece.logprobs or []
        if self._body.logprobs is not None and not self._hides_output and len(piece.token_ids) == len(entries):
            written = writer.write(piece.token_ids, entries)
            choice.logprobs = written if choice.logprobs is None else logprobs.joined(choice.logprobs, written)
        return choice

    async def _echo(self, number: int) -> _Echo:
        if number not in self._echoes:
            entries = self._generation.prompt_logprobs[number]
            ids, given = self._prompts[number].token_ids, self._prompts[number].text
            tokenizer, num_top = self._service.tokenizer, self._body.logprobs or 0
            names_ids = bool(self._body.return_tokens_as_token_ids)

            def make() -> _Echo:
                """The prompt as it was sent, including special tokens."""
                text = tokenizer.decode(ids, skip_special_tokens=False) if given is None else given
                if entries is None or self._body.logprobs is None:
                    return _Echo(text, None)
                shown = Detokenizer(tokenizer, skip_special_tokens=False)
                writer = logprobs.CompletionLogprobsWriter(tokenizer, num_top, shown, names_ids)
                written = writer.write(ids, [None, *entries])
                added = max(0, writer.offset - len(text))  # for a BOS token that the tokenizer added
                written.text_offset = [max(0, offset - added) for offset in written.text_offset]
                return _Echo(text, written)

            size = len(ids) * (2 + (self._body.logprobs or 0))
            self._echoes[number] = await self._service.off_loop(size, make)
        return self._echoes[number]

    def _logprobs_writer(self, before: Sequence[int]) -> logprobs.CompletionLogprobsWriter:
        """A writer for a text that follows the tokens `before`."""
        params, tokenizer = self._prompts[0].params, self._service.tokenizer
        text = Detokenizer(tokenizer, before, params.skip_special_tokens)
        return logprobs.CompletionLogprobsWriter(
            tokenizer, self._body.logprobs or 0, text, bool(self._body.return_tokens_as_token_ids)
        )


def _append(whole: CompletionChoice, part: CompletionChoice) -> None:
    """Append everything except the text, which would be copied with every part."""
    if part.finish_reason is not None:
        whole.finish_reason, whole.stop_reason = part.finish_reason, part.stop_reason
    if part.prompt_token_ids is not UNSET:
        whole.prompt_token_ids = part.prompt_token_ids
    if part.token_ids is not UNSET:
        whole.token_ids = [] if whole.token_ids is UNSET else whole.token_ids
        whole.token_ids.extend(part.token_ids)
    if part.logprobs is not None:
        whole.logprobs = whole.logprobs or CompletionLogprobs(
            text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[]
        )
        for name in CompletionLogprobs.__struct_fields__:
            getattr(whole.logprobs, name).extend(getattr(part.logprobs, name))
