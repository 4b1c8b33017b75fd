"""The chat page in a browser, against the real server with the demo model."""

import json

import pytest

from ...end_to_end.server_process import ServerProcess
from .chromium import SHIFT

DONE = "document.querySelectorAll('.assistant').length === {0} && !document.querySelector('.running')"
ANSWERS = "[...document.querySelectorAll('.assistant .text')].map(each => each.innerText)"
CHATS = "Object.keys(localStorage).filter(name => name.includes(':chat:'))"


@pytest.fixture
def page(new_page, server):
    page = new_page()
    page.open(server.url + "/")
    page.until("document.getElementById('model').value !== ''")
    return page


def settings(page, **values: str) -> None:
    page.click("Settings")
    for name, value in values.items():
        page.fill(f"#settings-form [name={name}]", value)
    page.click("Done", "#settings")
    page.until("!document.querySelector('dialog[open]')")


def say(page, text: str, num_answers: int = 1) -> str:
    page.fill("#text", text)
    page.press("Enter")
    page.until(DONE.format(num_answers))
    return page.evaluate(ANSWERS)[-1]


def test_a_conversation_has_its_history_figures_and_line_breaks(page, server):
    settings(page, temperature="0", max_tokens="12")
    page.fill("#text", "What is the capital")
    page.press("Enter", SHIFT)
    page.send("Input.insertText", text="of France?")
    assert page.evaluate("document.getElementById('text').value") == "What is the capital\nof France?"
    page.press("Enter")
    page.until(DONE.format(1))
    first = page.evaluate(ANSWERS)[0]
    asked = [{"role": "user", "content": "What is the capital\nof France?"}]
    fields = {"temperature": 0, "max_tokens": 12}
    _, wanted = server.post("/v1/chat/completions", {"messages": asked} | fields)
    assert first == wanted["choices"][0]["message"]["content"].strip()
    second = say(page, "And of Japan?", 2)
    asked += [wanted["choices"][0]["message"], {"role": "user", "content": "And of Japan?"}]
    _, wanted = server.post("/v1/chat/completions", {"messages": asked} | fields)
    assert second == wanted["choices"][0]["message"]["content"].strip()
    foot = page.evaluate("[...document.querySelectorAll('.foot')].at(-1).textContent")
    assert f"{wanted['usage']['completion_tokens']} tokens · " in foot
    assert "first token after" in foot


def test_conversations_survive_a_reload_and_are_exported_and_imported(page, new_page, server):
    settings(page, temperature="0", max_tokens="8")
    answer = say(page, "What is the capital of Peru?")
    page.open(server.url + "/?again")
    page.click("What is the capital of Peru?", "#conversations")
    assert page.evaluate(ANSWERS) == [answer]
    exported = page.evaluate("import('/page/store.js').then(store => store.exportedText())")
    other = new_page()
    other.open(server.url + "/")
    assert other.evaluate(CHATS) == []
    take = f"""import('/page/store.js').then(store => store.importText({json.dumps(exported)}))"""
    assert other.evaluate(take) == 1
    other.open(server.url + "/?again")
    other.click("What is the capital of Peru?", "#conversations")
    assert other.evaluate(ANSWERS) == [answer]
    broken = exported.replace('"done"', '"other"')
    refused = other.evaluate(
        f"import('/page/store.js').then(s => s.importText({json.dumps(broken)})).catch(e => e.message)"
    )
    assert refused == "It contains a conversation in another format."


def test_an_answer_is_regenerated_and_a_message_is_edited(page):
    settings(page, max_tokens="48", temperature="2")
    answers = {say(page, "Tell me a story.")}
    for _ in range(3):
        page.click("Regenerate")
        page.until(DONE.format(1))
        answers.add(page.evaluate(ANSWERS)[0])
    assert len(answers) > 1, "each time with a different seed"
    page.click("Edit", ".user")
    page.fill(".editor textarea", "What is the capital of Chile?")
    page.click("Send", ".editor")
    page.until(DONE.format(1))
    assert page.evaluate("[...document.querySelectorAll('.user .text')].map(e => e.innerText)") == [
        "What is the capital of Chile?"
    ]


def test_escape_stops_an_answer_which_stays_in_the_history(page, server):
    settings(page, more='{"ignore_eos": true}')
    page.fill("#text", "Tell me a story.")
    page.press("Enter")
    page.until("document.querySelector('.assistant .text').innerText.length > 20")
    assert page.evaluate("document.getElementById('send').textContent") == "Stop"
    page.press("Escape")
    page.until(DONE.format(1))
    foot = page.evaluate("document.querySelector('.foot').textContent")
    assert " · first token after " in foot
    assert foot.endswith("stopped")
    settings(page, more="", max_tokens="8")
    say(page, "Go on", 2)
    assert not page.evaluate("document.querySelector('.assistant > .error:not([hidden])')")


def test_a_refused_turn_shows_the_servers_message_and_leaves_the_history(page):
    settings(page, max_tokens="8", more='{"temperature": 3}')
    say(page, "Hello")
    error = page.evaluate("document.querySelector('.assistant > .error').textContent")
    assert "temperature" in error
    assert "3" in error
    settings(page, more="", temperature="0")
    say(page, "What is the capital of Italy?", 2)
    history = """import('/page/conversation.js').then(({ history }) => history(JSON.parse(localStorage.getItem(
        Object.keys(localStorage).find(name => name.includes(':chat:')))).messages, 4, 'Be brief.'))"""
    assert [(each["role"], each["content"][:12]) for each in page.evaluate(history)] == [
        ("system", "Be brief."),
        ("user", "What is the "),
        ("assistant", page.evaluate(ANSWERS)[1][:12]),
    ]


def test_a_tool_call_is_shown_folded(page):
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": city}}
    settings(page, temperature="0", more=json.dumps({"tools": [tool], "tool_choice": "required", "max_tokens": 64}))
    say(page, "What is the weather in Paris?")
    assert page.evaluate("document.querySelector('.call summary').innerText") == "Call to get_weather"
    assert "city" in json.loads(page.evaluate("document.querySelector('.call pre').textContent"))


def test_tokens_are_coloured_by_their_probability(page):
    settings(page, temperature="0", max_tokens="8")
    plain = say(page, "What is the capital of Spain?")
    page.click("Settings")
    page.evaluate("document.querySelector('[name=logprobs]').click()")
    page.click("Done", "#settings")
    page.click("Regenerate")
    page.until("document.querySelectorAll('.tokens span[class]').length > 1 && !document.querySelector('.running')")
    assert page.evaluate("document.querySelector('.tokens').innerText").strip() == plain
    assert "%" in page.evaluate("document.querySelector('.tokens span').title")


def test_a_key_is_asked_for_and_kept_for_the_tab(new_page, short_folder):
    server = ServerProcess(short_folder, "--no-standby-workers", "--api-key", "secret")
    try:
        server.wait_ready()
        page, url = new_page(), f"http://127.0.0.1:{server.port}/"
        page.open(url)
        page.until("document.getElementById('key-dialog').open")
        assert "A valid API key is required" in page.text()
        for key in ("wrong", "secret"):
            page.until("document.getElementById('key-dialog').open")
            page.fill("#key", key)
            page.click("Use this key")
        page.until("document.getElementById('model').value !== ''")
        assert say(page, "What is the capital of Norway?")
        page.open(url + "?again")
        page.until("document.getElementById('model').value !== ''")
        assert page.evaluate("Object.values(localStorage).some(value => value.includes('secret'))") is False
    finally:
        server.close()
