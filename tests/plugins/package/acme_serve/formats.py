"""How the models of this package write calls of tools, and reasoning."""

from paged_serve.frontend.parsers.formats import CallForm, ReasoningFormat, ToolFormat
from paged_serve.frontend.parsers.readers.states import CONTENT, JsonCall, Skip, Text

TOOLS = ToolFormat(
    "acme",
    {
        CONTENT: Text("content", {"<<call>>": "call"}),
        "call": JsonCall("end"),
        "end": Skip({"<<end>>": CONTENT}, CONTENT),
    },
    CallForm('<<call>>{"name": {json}, "arguments": ', "}<<end>>", "<<call>>"),
)
REASONING = ReasoningFormat("acme", "<<thought>>", "<<answer>>")
