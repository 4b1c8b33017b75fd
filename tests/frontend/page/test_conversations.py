"""What a user does while an answer is generated, and what then is sent, shown and stored."""

import threading

import pytest

from .scripted_server import DONE, content, delta, usage
from .test_streams import ENDED, call, say

FIRST_TEXT = "document.querySelector('.assistant .text').innerText"
GOOD = [content("Good."), delta("stop"), usage(1), DONE]


@pytest.fixture
def page(new_page, scripted):
    return opened(new_page(), scripted)


def opened(page, scripted):
    page.open(scripted.url)
    page.until("document.getElementById('model').value !== ''")
    return page


@pytest.fixture
def held(scripted):
    """held(*chunks): an answer that does not end after them until the test does."""
    more = threading.Event()

    def answer(*chunks):
        yield from chunks
        more.wait(30)

    yield answer
    more.set()


def test_a_conversation_deleted_during_its_answer_stays_deleted(page, scripted, held):
    scripted.answers = [held(content("begun")), GOOD]
    say(page, "One")
    page.until(f"{FIRST_TEXT} === 'begun'")
    page.evaluate("window.confirm = () => true")
    page.click("✕", "#conversations")
    page.until("document.querySelectorAll('.turn').length === 0")
    say(page, "Two")
    page.until(ENDED.format(1))
    assert page.evaluate("[...document.querySelectorAll('#conversations .name')].map(each => each.title)") == ["Two"]


def test_a_result_given_before_the_answer_has_ended_is_sent_with_its_call(page, scripted, held):
    scripted.answers = [held(call(0, "{}", id="a", name="now")), GOOD]
    say(page, "What time is it?")
    page.until("document.querySelector('.call')")
    page.evaluate("document.querySelector('.call').open = true")
    page.fill(".call textarea", "Noon")
    page.click("Continue with the results", ".call")
    page.until(ENDED.format(2))
    assert [each["role"] for each in scripted.bodies[1]["messages"]] == ["user", "assistant", "tool"]


def test_only_the_first_of_several_choices_is_shown(page, scripted):
    pieces = [content("Li"), content("No"), content("ma"), content("thing")]
    for number, piece in enumerate(pieces):
        piece["choices"][0]["index"] = number % 2
    scripted.answers = [[*pieces, delta("stop"), usage(4), DONE]]
    say(page, "Which capital?")
    page.until(ENDED.format(1))
    assert page.evaluate(FIRST_TEXT) == "Lima"


def test_colours_turned_off_during_an_answer_keep_its_rest_visible(page, scripted):
    more = threading.Event()

    def coloured(text):
        piece = content(text)
        piece["choices"][0]["logprobs"] = {"content": [{"token": text, "logprob": -0.1, "bytes": [*text.encode()]}]}
        return piece

    def answer():
        yield coloured("begin ")
        assert more.wait(30)
        yield from (coloured("end"), delta("stop"), usage(2), DONE)

    page.evaluate("document.querySelector('[name=logprobs]').click()")
    scripted.answers = [answer()]
    say(page, "One")
    page.until(f"{FIRST_TEXT}.startsWith('begin')")
    page.evaluate("document.querySelector('[name=logprobs]').click()")
    more.set()
    page.until(ENDED.format(1))
    assert page.evaluate(FIRST_TEXT) == "begin end"


def test_a_new_key_leaves_the_chosen_model(new_page, scripted):
    scripted.models = ["scripted", "adapter"]
    page = opened(new_page(), scripted)
    page.evaluate("document.getElementById('model').value = 'adapter'")
    scripted.answers = [(401, "A valid API key is required."), GOOD]
    say(page, "One")
    page.until("document.getElementById('key-dialog').open")
    page.fill("#key", "new")
    page.click("Use this key")
    page.until(f"{ENDED.format(1)} && {FIRST_TEXT} === 'Good.'")
    assert [body["model"] for body in scripted.bodies] == ["adapter", "adapter"]


def test_a_key_entered_in_the_settings_lists_its_models(page, scripted):
    scripted.models = ["scripted", "adapter"]
    page.click("Settings")
    page.click("API key …")
    page.fill("#key", "other")
    page.click("Use this key")
    page.until("document.getElementById('model').options.length === 2")


def test_a_button_clicked_twice_shows_its_own_text_again(page):
    clicked = """(async () => {
      const { button, copy } = await import("/page/dom.js");
      const copies = button("Copy", () => {}), waited = [];
      window.setTimeout = action => waited.push(action);
      await copy("a", copies);
      await copy("a", copies);
      waited.forEach(action => action());
      return copies.textContent;
    })()"""
    assert page.evaluate(clicked) == "Copy"
