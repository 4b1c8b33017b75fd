"""POST /inference/v1/generate: vLLM's route for programs that send tokens and receive tokens."""

from paged_serve.protocol.errors import InvalidRequest

from ...service import Service
from ..endpoints import Endpoint
from ..generation import Prompt
from .request import FlatTokensRequest, TokenSampling, prompt_of, translate
from .writer import TokensWriter


async def _prompts(service: Service, body: FlatTokensRequest, raw: bytes, moment: int) -> list[Prompt]:
    try:
        return [await prompt_of(service, body, len(raw))]
    except InvalidRequest as error:  # raised again with the name of the body's field
        nested = error.param in TokenSampling.__struct_fields__
        raise InvalidRequest(error.message, f"sampling_params.{error.param}" if nested else error.param) from None


TOKENS = Endpoint("generate-", FlatTokensRequest, _prompts, TokensWriter, translate=translate)
