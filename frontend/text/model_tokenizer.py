"""The tokenizer that LLM.get_tokenizer returns, with the methods of transformers that programs call on it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.special_tokens import SPECIAL_TOKENS

from .tokenizer import Tokenizer

# Parameters of transformers' apply_chat_template that are no variables of a template: (accepted value, why no other).
_NOT_OF_TEMPLATES: dict[str, tuple[Any, str]] = {
    "max_length": (None, "generate truncates, with tokenization_kwargs"),
    "padding": (False, "prompts are not padded"),
    "return_assistant_tokens_mask": (False, "it is for training"),
    "return_dict": (False, "tokens are returned as a list"),
    "return_tensors": (None, "tokens are returned as a list"),
    "truncation": (False, "generate truncates, with tokenization_kwargs"),
}


class Render(Protocol):
    """Makes the prompt of one conversation, as text and tokens; `options` are parameters of LLM.chat."""

    def __call__(self, conversation: Any, **options: Any) -> tuple[str, list[int]]: ...


class TokenizedText(dict[str, Any]):
    """What calling a tokenizer returns: `input_ids`, as an item and as an attribute."""

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]


class ModelTokenizer:
    """Names and parameters are those of transformers. Thread-safe.

    `bos_token`, `eos_token`, `pad_token` and so on, and their ids (`eos_token_id`, …), are None if the files of the
    model do not name them.
    """

    def __init__(self, tokenizer: Tokenizer, chat_template: str | dict[str, str] | None, render: Render):
        self._tokenizer = tokenizer
        self._render = render
        self.chat_template = chat_template  # the Jinja source; by name if there are several
        self.vocab_size = tokenizer.vocab_size
        self.special_tokens_map = dict(tokenizer.special_tokens)

    def __getattr__(self, name: str) -> Any:
        token = self.__dict__.get("special_tokens_map", {}).get(name.removesuffix("_id"))
        if name.removesuffix("_id") not in SPECIAL_TOKENS:
            raise AttributeError(f"the tokenizer of an LLM has no {name}; for transformers', use its AutoTokenizer")
        return self._tokenizer.token_id(token) if token is not None and name.endswith("_id") else token

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> TokenizedText:
        """The tokens of one text, or of each of several."""
        if isinstance(text, str):
            return TokenizedText(input_ids=self.encode(text, add_special_tokens))
        return TokenizedText(input_ids=[self.encode(each, add_special_tokens) for each in text])

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens)

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        tokens: list[str] = self.convert_ids_to_tokens(self.encode(text, add_special_tokens))
        return tokens

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode([token_ids] if isinstance(token_ids, int) else token_ids, skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(token_ids, skip_special_tokens) for token_ids in sequences]

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """The spelling of one token in the vocabulary, or of each of several; None for an unknown id."""
        return self._tokenizer.token(ids) if isinstance(ids, int) else [self._tokenizer.token(each) for each in ids]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of one token by its spelling, or of each of several; that of `unk_token` for an unknown spelling."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._tokenizer.token_id(tokens)
        return self.unk_token_id if found is None else found

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.vocabulary()

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_kwargs: Any,
    ) -> Any:
        """The prompt of a conversation, or of each of several, as tokens or (tokenize=False) as a text.

        The prompt is that of LLM.chat with the same arguments. Raises InvalidRequest for what LLM.chat refuses.
        """
        kwargs = {name: value for name, value in template_kwargs.items() if name not in _NOT_OF_TEMPLATES}
        for name in template_kwargs.keys() - kwargs.keys():
            only, why = _NOT_OF_TEMPLATES[name]
            if (value := template_kwargs[name]) is not None and value != only:
                raise InvalidRequest(f"{name} is {value!r:.100}: {why}; leave it out", name)
        options = {
            "tools": tools,
            "documents": documents,
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": kwargs or None,
        }
        several = isinstance(conversation, list | tuple) and conversation and not isinstance(conversation[0], Mapping)
        prompts = [self._render(each, **options) for each in (conversation if several else [conversation])]
        found = [ids if tokenize else text for text, ids in prompts]
        return found if several else found[0]
