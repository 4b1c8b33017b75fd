"""Streams that the demo model does not generate: reasoning, calls, failures in the middle, very long answers."""

import threading

import pytest

from .scripted_server import DONE, content, delta, usage

ENDED = "document.querySelectorAll('.assistant').length === {0} && !document.querySelector('.running')"
AT_END = "(box => box.scrollHeight - box.scrollTop - box.clientHeight < 2)(document.getElementById('log'))"
NO_OVERLAP = """(() => {
  const all = [...document.querySelectorAll('.turn, .turn > *, .markdown > *')];
  const boxes = all.filter(each => each.checkVisibility());
  return boxes.filter(each => each.scrollHeight > each.clientHeight + 2
      && getComputedStyle(each).overflowY === 'visible'
      && getComputedStyle(each).display !== 'inline').map(each => each.outerHTML.slice(0, 80))
    .concat([...document.querySelectorAll('.turn')].filter((each, index, all) =>
      index && each.getBoundingClientRect().top
      < all[index - 1].getBoundingClientRect().bottom).map(() => 'turns overlap'));
})()"""


@pytest.fixture
def page(new_page, scripted):
    page = new_page()
    page.open(scripted.url)
    page.until("document.getElementById('model').value !== ''")
    return page


def say(page, text: str) -> None:
    page.fill("#text", text)
    page.press("Enter")


def call(index: int, arguments: str, **first: str) -> dict:
    name = {"name": first["name"]} if first else {}
    head = {"id": first["id"], "type": "function"} if first else {}
    return delta(tool_calls=[{"index": index, **head, "function": {**name, "arguments": arguments}}])


def test_reasoning_and_calls_are_folded_and_their_results_sent(page, scripted):
    pieces = [
        call(0, "", id="a", name="get_weather"),
        call(0, '{"city": '),
        call(0, '"Paris"}'),
        call(1, "{}", id="b", name="now"),
    ]
    reasoning = [delta(reasoning="First ", reasoning_content="First "), delta(reasoning="think.")]
    end = [delta("tool_calls"), usage(9), DONE]
    scripted.answers = [
        [delta(role="assistant", content=""), *reasoning, *pieces, *end],
        [content("Sunny"), delta("stop"), usage(1), DONE],
    ]
    say(page, "Weather?")
    page.until(ENDED.format(1))
    folded = (
        "[...document.querySelectorAll('details')].map(each => [each.open, each.querySelector('summary').innerText, "
        + ("each.querySelector('.folded, pre').textContent])")
    )
    assert page.evaluate(folded) == [
        [False, "Reasoning", "First think."],
        [False, "Call to get_weather", '{"city": "Paris"}'],
        [False, "Call to now", "{}"],
    ]
    page.evaluate("document.querySelectorAll('.call').forEach(each => { each.open = true; })")
    page.fill(".call textarea", "20 degrees")
    page.click("Continue with the results", ".call")
    page.until(ENDED.format(2))
    sent = scripted.bodies[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["reasoning"] == "First think."
    assert sent[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert sent[2] == {"role": "tool", "tool_call_id": "a", "content": "20 degrees"}
    assert page.evaluate(NO_OVERLAP) == []


def test_calls_of_custom_tools_and_of_functions_are_shown_and_their_results_sent(page, scripted):
    first = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "search", "input": ""}}
    custom = [[first], [{"index": 0, "custom": {"input": "capital "}}], [{"index": 0, "custom": {"input": "of Peru"}}]]
    function = [{"name": "now", "arguments": ""}, {"arguments": "{}"}]
    end = [delta("stop"), usage(2), DONE]
    scripted.answers = [
        [*(delta(tool_calls=pieces) for pieces in custom), *end],
        [*(delta(function_call=piece) for piece in function), *end],
        [content("Noon."), *end],
    ]
    say(page, "Which capital?")
    for number, result in enumerate(("Lima", "12:00"), 1):
        page.until(ENDED.format(number))
        page.evaluate("document.querySelectorAll('.call').forEach(each => { each.open = true; })")
        page.fill(f".assistant:nth-child({number + 1}) .call textarea", result)
        page.click("Continue with the results", f".assistant:nth-child({number + 1})")
    page.until(ENDED.format(3))
    calls = "[...document.querySelectorAll('.call')].map(each => each.querySelector('summary, pre').textContent)"
    texts = "[...document.querySelectorAll('.call pre')].map(each => each.textContent)"
    assert (page.evaluate(calls), page.evaluate(texts)) == (
        ["Call to search", "Call to now"],
        ["capital of Peru", "{}"],
    )
    sent = scripted.bodies[2]["messages"]
    assert sent[1]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "search", "input": "capital of Peru"}}
    ]
    assert sent[2] == {"role": "tool", "tool_call_id": "a", "content": "Lima"}
    assert sent[3]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert sent[4]["content"] == "12:00"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            [content("half"), {"error": {"message": "The engine has failed.", "code": 500}}, DONE],
            "The engine has failed.",
        ),
        ([content("half")], "The stream ended before the answer did."),
        ((429, "Too much is waiting."), "Too much is waiting."),
    ],
)
def test_a_failed_turn_is_not_sent_again_but_can_be_tried_again(page, scripted, answer, message):
    good = [content("Good."), delta("stop"), usage(1), DONE]
    scripted.answers = [answer, good, answer, good]
    say(page, "One")
    page.until(ENDED.format(1))
    assert page.evaluate("document.querySelector('.assistant > .error').innerText") == message
    page.click("Try again")
    page.until(ENDED.format(1) + " && document.querySelector('.error').hidden")
    assert scripted.bodies[1]["messages"] == [{"role": "user", "content": "One"}]
    say(page, "Two")
    page.until(ENDED.format(2))
    say(page, "Three")
    page.until(ENDED.format(3))
    assert [each["content"] for each in scripted.bodies[3]["messages"]] == ["One", "Good.", "Three"]


def test_the_stream_is_followed_until_the_reader_scrolls_up(page, scripted):
    more = threading.Event()

    def answer():
        yield from (content(f"Paragraph {number}.\n\n") for number in range(60))
        assert more.wait(30)
        yield from (content(f"Paragraph {number}.\n\n") for number in range(60, 120))
        yield from (delta("stop"), usage(120), DONE)

    scripted.answers = [answer()]
    say(page, "Write")
    page.until(f"document.body.innerText.includes('Paragraph 59.') && {AT_END}")
    page.evaluate("document.getElementById('log').scrollTop = 100")
    page.until("!document.getElementById('latest').hidden")
    more.set()
    page.until(ENDED.format(1))
    assert page.evaluate("document.getElementById('log').scrollTop") == 100
    page.click("↓ Latest")
    page.until(AT_END + " && document.getElementById('latest').hidden")
    assert page.evaluate(NO_OVERLAP) == []


def test_every_setting_is_sent_and_empty_ones_are_not(page, scripted):
    scripted.answers = [[content("a"), delta("stop"), DONE]] * 2
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.1, "seed": 7}
    given |= {"frequency_penalty": -0.2, "repetition_penalty": 1.1, "max_tokens": 64, "min_tokens": 2}
    say(page, "One")
    page.until(ENDED.format(1))
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    plain = {"model": "scripted", "messages": [{"role": "user", "content": "One"}], **options}
    assert scripted.bodies[0] == plain
    page.click("Settings")
    further = {"system": "Be brief.", "stop": "END\nSTOP", "more": '{"reasoning_effort": "low"}'}
    for name, value in (given | further).items():
        page.fill(f"#settings-form [name={name}]", str(value))
    page.click("Done", "#settings")
    page.click("New chat")
    say(page, "One")
    page.until(ENDED.format(1) + " && document.querySelector('.assistant .text').innerText === 'a'")
    messages = [{"role": "system", "content": "Be brief."}, *plain["messages"]]
    asked = plain | given | {"messages": messages, "stop": ["END", "STOP"], "reasoning_effort": "low"}
    assert scripted.bodies[1] == asked


def test_on_a_phone_nothing_is_wider_than_the_screen(new_page, scripted):
    page = new_page(width=360, height=640, mobile=True)
    page.open(scripted.url)
    code = (
        "```python\n"
        + "x = 1  # a long line of code " * 10
        + "\n```\n"
        + "| a | b |\n|--|--|\n| "
        + "wide " * 40
        + "| c |\n\n"
    )
    scripted.answers = [[content(code + "https://example.org/" + "a" * 300), delta("stop"), usage(9), DONE]]
    say(page, "W" * 200)
    page.until(ENDED.format(1))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.getElementById('log').scrollWidth") == 360
    assert page.evaluate(NO_OVERLAP) == []
    assert not page.evaluate("document.getElementById('sidebar').checkVisibility({ visibilityProperty: true })")
    page.evaluate("document.getElementById('menu').click()")
    page.until("document.getElementById('sidebar').checkVisibility({ visibilityProperty: true })")


LONG = "Here is **word** number {0} of a *long* answer, with `code`. "


def long_answer(num_tokens: int):
    for number in range(num_tokens):
        yield content(
            LONG.format(number)
            if number % 10
            else f"\n\n## Part {number}\n\n- an item\n- another\n\n```py\nx = {number}\n```\n\n"
        )
    yield from (delta("stop"), usage(num_tokens), DONE)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_ten_thousand_tokens_take_linear_time(page, scripted):
    spent = []
    for count in (2_500, 10_000):
        scripted.answers = [long_answer(count)]
        page.click("New chat")
        begun = page.evaluate("performance.now()")
        say(page, "Write a book")
        page.until(f"document.body.innerText.includes('{count} tokens') && {ENDED.format(1)}", 200)
        spent.append(page.evaluate("performance.now()") - begun)
        assert page.evaluate(AT_END)
        assert page.evaluate("document.querySelectorAll('.markdown h2').length") == count // 10
        assert page.evaluate(NO_OVERLAP) == []
    print(spent)
    assert spent[1] < 8 * spent[0]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_thirty_turns_stay_in_order_and_the_last_is_as_fast(page, scripted):
    scripted.answers = [list(long_answer(200)) for _ in range(30)]
    spent = []
    for turn in range(30):
        begun = page.evaluate("performance.now()")
        say(page, f"Question {turn}")
        page.until(ENDED.format(turn + 1))
        spent.append(page.evaluate("performance.now()") - begun)
        assert len(scripted.bodies[turn]["messages"]) == 2 * turn + 1
    print(spent)
    assert page.evaluate(NO_OVERLAP) == []
    assert sorted(spent[20:])[5] < 4 * sorted(spent[:10])[5] + 200
