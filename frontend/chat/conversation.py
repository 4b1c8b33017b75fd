"""The chat: questions go to the server, answers to the terminal, and tool results come from the keyboard."""

import json
import secrets
from dataclasses import dataclass
from itertools import chain
from typing import Any

import click

from paged_serve.protocol.errors import PagedServeError

from ..cli.http_client import HttpClient
from .answer import Answer
from .reader import Reader
from .session import Message, Session

PATH = "/v1/chat/completions"
CUT_OFF = {
    "length": "cut off at the longest answer; see /set max_tokens",
    "repetition": "it repeated itself",
    "abort": "the server's operator ended it",
}


@dataclass(slots=True)
class Chat:
    client: HttpClient
    session: Session
    reader: Reader
    shows_reasoning: bool = True
    shows_figures: bool = False
    has_ended: bool = False

    def ask(self, question: str | list[dict[str, Any]], *, is_new: bool = True) -> bool:
        """Ask a question and print its answer; after an answer that calls tools, ask again with their results.

        Returns whether the question and its answer are in the conversation now.
        A question that is refused, or stopped before any output, leaves no trace in the conversation.
        """
        messages = self.session.messages
        start = len(messages)
        messages.append({"role": "user", "content": question})
        extra: dict[str, Any] = {} if is_new or "seed" in self.session.fields else {"seed": secrets.randbelow(1 << 31)}
        while (message := self._answer(extra)) is not None:
            messages.append(message)
            results = [self._result(called(call)) for call in message.get("tool_calls", ())]
            if not results:
                return True
            if None in results:
                break
            for call, result in zip(message["tool_calls"], results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        del messages[start:]
        return False

    def _answer(self, extra: dict[str, Any]) -> Message | None:
        answer, is_whole, last = Answer(), False, ""
        body = {**self.session.body(), **extra, "stream_options": {"include_usage": True}}
        try:
            for kind, text in chain.from_iterable(map(answer.push, self.client.stream(PATH, body))):
                if kind == "reasoning" and not self.shows_reasoning:
                    continue
                if last and (kind == "name" or last == "reasoning" != kind):
                    click.echo()
                click.echo(text if kind == "content" else click.style(text, dim=True), nl=False)
                last = kind
            is_whole = answer.finish_reason not in CUT_OFF
        except KeyboardInterrupt:
            pass
        except PagedServeError as error:
            click.echo(f"[{error}]", nl=False, err=True)
        click.echo()
        self._print_notes(answer)
        return answer.message(is_whole=is_whole)

    def _print_notes(self, answer: Answer) -> None:
        if (why := CUT_OFF.get(answer.finish_reason or "")) is not None:
            click.secho(f"[{why}]", dim=True, err=True)
        if self.shows_figures:
            click.secho(f"[{answer.figures()}]", dim=True, err=True)

    def _result(self, function: Message) -> str | None:
        """The typed result of a tool call; None after ctrl-C or ctrl-D."""
        try:
            return self.reader.read(f"result of {function['name']}> ")
        except KeyboardInterrupt:
            click.echo()
            return None

    def shown(self, message: Message) -> str:
        """One message of the conversation, as text for /show."""
        calls = "".join(
            f"\n  {function['name']} {function.get('arguments', function.get('input'))}"
            for function in map(called, message.get("tool_calls") or ())
            if function
        )
        return f"{message['role']}: {shown_content(message.get('content') or '')}{calls}"


def shown_content(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def called(call: Message) -> Message:
    """The function or custom tool of a call, with its name and arguments or input; empty for one of another type."""
    return call.get("function") or call.get("custom") or {}
