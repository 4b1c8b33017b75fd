"""The helper process that compiles grammars before a request reaches a worker, so that a hang or crash is contained.

The first frame of the link is AddedTokens; each further frame is a StructuredOutputsParams, answered by a Compiled.
"""

import socket

import msgspec
from llguidance import LLTokenizer

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..helpers.confinement import forbid_system_calls
from ..helpers.frames import receive_frame, send_frame
from ..helpers.helper_main import limited_time, run_helper
from .helper_messages import AddedTokens, Compiled
from .lowering import bytes_tokenizer, check, lowered


def compiled(params: StructuredOutputsParams, added: AddedTokens, tokenizer: LLTokenizer) -> Compiled:
    try:
        found = lowered(params, added)
        check(found.source, tokenizer)
        return Compiled(found.source, found.warnings)
    except InvalidRequest as refused:
        return Compiled(refusal=str(refused).encode(errors="replace").decode())
    except MemoryError:
        return Compiled(refusal="it needs more memory than a grammar may take")


def serve(link: socket.socket) -> None:
    """Answer requests until the other side closes."""
    added = msgspec.json.decode(receive_frame(link), type=AddedTokens)
    tokenizer = bytes_tokenizer(added)
    decode = msgspec.json.Decoder(StructuredOutputsParams).decode
    compiled(StructuredOutputsParams(json_object=True), added, tokenizer)  # the first use loads modules
    forbid_system_calls()
    send_frame(link, Compiled())
    while True:
        params = decode(receive_frame(link))
        with limited_time():
            answer = compiled(params, added, tokenizer)
        send_frame(link, answer)


def main() -> None:
    run_helper(serve)


if __name__ == "__main__":
    main()
