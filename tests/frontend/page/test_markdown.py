"""The page's Markdown renderer, in the browser: its elements, and that pieces render like the whole."""

import json
import random

import pytest

SHOW = """(async (pieces) => {
  const { Markdown } = await import("/page/markdown.js");
  const root = document.createElement("div"), writer = new Markdown(root);
  pieces.forEach(piece => writer.push(piece));
  writer.finish();
  return root.innerHTML.replaceAll('<button type="button">Copy</button>', "");
})(%s)"""
CODE = '<div class="code"><div class="code-head"><span>{}</span></div><pre><code>{}</code></pre></div>'
LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
CASES = {
    "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
    "# A **b**\n## C ##\ntext": "<h1>A <strong>b</strong></h1><h2>C</h2><p>text</p>",
    "*a* **b *c* d** ~~e~~ _f_ snake_case_name 2 * 3 * 4": (
        "<p><em>a</em> <strong>b <em>c</em> d</strong> <del>e</del> <em>f</em> snake_case_name 2 * 3 * 4</p>"
    ),
    "`a*b*` and ``c`d``": "<p><code>a*b*</code> and <code>c`d</code></p>",
    "an `open and **open": "<p>an `open and **open</p>",
    "```python\nx = '<b>'\n\n  y\n```\nafter": CODE.format("python", "x = '&lt;b&gt;'\n\n  y\n") + "<p>after</p>",
    "````\n```\n````": CODE.format("", "```\n"),
    "```js\nnever closed": CODE.format("js", "never closed"),
    "- a\n- b\n  - c\n- d": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li><li><p>d</p></li></ul>",
    "3. x\n4. y\n\n   more": '<ol start="3"><li><p>x</p></li><li><p>y</p><p>more</p></li></ol>',
    "1. x\n   ```\n   code\n   ```\n2. y": "<ol><li><p>x</p>"
    + CODE.format("", "code\n")
    + "</li><li><p>y</p></li></ol>",
    "> a\n> b\n\nc": "<blockquote><p>a<br>b</p></blockquote><p>c</p>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "| a | b |\n|---|--:|\n| 1 | `2` |\n\nend": (
        '<div class="table"><table><thead><tr><th class="">a</th><th class="right">b</th></tr></thead>'
        '<tbody><tr><td class="">1</td><td class="right"><code>2</code></td></tr></tbody></table></div><p>end</p>'
    ),
    "See:\nx | y\na|b\n-|-\n1|2": (
        '<p>See:<br>x | y</p><div class="table"><table><thead><tr><th class="">a</th><th class="">b</th></tr></thead>'
        '<tbody><tr><td class="">1</td><td class="">2</td></tr></tbody></table></div>'
    ),
    "[docs](https://example.org/a_(b)) https://example.org/x.": "<p>"
    + LINK.format("https://example.org/a_(b)", "docs")
    + " "
    + LINK.format("https://example.org/x", "https://example.org/x")
    + ".</p>",
    "[x](javascript:alert(1))": '<p><span title="javascript:alert(1)">x</span></p>',
    "![pixel](https://example.org/p.png)": "<p>" + LINK.format("https://example.org/p.png", "pixel") + "</p>",
    "<img src=x onerror=alert(1)> <script>x</script>": (
        "<p>&lt;img src=x onerror=alert(1)&gt; &lt;script&gt;x&lt;/script&gt;</p>"
    ),
    "# A\r\n~~~js `x`\r\ny\r\n~~~\r\nz": "<h1>A</h1>" + CODE.format("js", "y\r\n") + "<p>z</p>",
    r"\*not\* \# 1\. a": "<p>*not* # 1. a</p>",
}


@pytest.fixture
def page(new_page, scripted):
    page = new_page()
    page.open(scripted.url)
    return page


def shown(page, *pieces: str) -> str:
    return page.evaluate(SHOW % json.dumps(pieces))


def test_each_form_of_text_gets_its_elements(page):
    for text, wanted in CASES.items():
        assert shown(page, text) == wanted, text


def test_pieces_render_like_the_whole(page):
    rng, whole = random.Random(5), "\n\n".join(CASES)
    wanted = shown(page, whole)
    assert shown(page, *whole) == wanted
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(whole)), 60))
        assert shown(page, *(whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True))) == wanted


LONG_LINES = {
    f"| a | b |\n|{'-' * 90}|{'-' * 90}|\n| c | d |\n\nend": (
        '<div class="table"><table><thead><tr><th class="">a</th><th class="">b</th></tr></thead>'
        '<tbody><tr><td class="">c</td><td class="">d</td></tr></tbody></table></div><p>end</p>'
    ),
    "a\n\n" + "-" * 400 + "\n\nb": "<p>a</p><hr><p>b</p>",
    "```py " + "x " * 100 + "\ncode\n```\nend": CODE.format("py", "code\n") + "<p>end</p>",
    "> # " + "x " * 100 + "y\nend": f"<blockquote><h1>{'x ' * 100}y</h1></blockquote><p>end</p>",
    "- " * 100 + "x": "<ul><li>" * 10 + f"<p>{'- ' * 90}x</p>" + "</li></ul>" * 10,
}


def test_long_lines_that_arrive_in_pieces_keep_their_kind(page):
    for text, wanted in LONG_LINES.items():
        assert shown(page, text) == wanted, text
        assert shown(page, *text) == wanted, text


@pytest.mark.parametrize("seed", range(3))
def test_random_marks_make_only_known_elements(page, seed):
    rng = random.Random(seed)
    parts = [
        "*",
        "**",
        "_",
        "`",
        "```",
        "\n",
        "\n\n",
        "> ",
        "- ",
        "1. ",
        "  ",
        "# ",
        "|",
        "---",
        "[a](b)",
        "<b>",
        "x ",
        "~~",
        "\\",
    ]
    for _ in range(40):
        pieces = rng.choices(parts, k=rng.randint(1, 60))
        streamed, whole = shown(page, *pieces), shown(page, "".join(pieces))
        assert streamed == whole, pieces
        assert "<b>" not in streamed


RUNS = """(async () => {
  const { renderMarkdown } = await import("/page/markdown.js");
  const spaces = " ".repeat(40000), begun = performance.now();
  for (const text of [`x${spaces}y\\nz`, `| a |\\n|---|\\n${spaces}y`, `${"~".repeat(40000)}\\``]) {
    renderMarkdown(document.createElement("div"), text);
  }
  return performance.now() - begun;
})()"""


def test_a_long_run_of_one_character_takes_linear_time(page):
    assert page.evaluate(RUNS) < 1000


LINEAR = """(async () => {
  const { Markdown } = await import("/page/markdown.js");
  const texts = { words: "word ", list: "- item of a list\\n", letters: "abc", chinese: "\\u4e2d\\u6587", marks: "**a ",
    open: "[*_`",
    table: "| a | b |\\n", code: "x = 1\\n" }, slow = {};
  const starts = { table: "| a | b |\\n|--|--|\\n", code: "```\\n" };
  for (const [name, text] of Object.entries(texts)) {
    const times = [1000, 4000].map(count => {
      const root = document.createElement("div"), writer = new Markdown(root), begun = performance.now();
      writer.push(starts[name] ?? "");
      for (let n = 0; n < count; n++) writer.push(text);
      writer.finish();
      return performance.now() - begun;
    });
    slow[name] = times;
  }
  return slow;
})()"""


@pytest.mark.nightly
def test_the_time_of_a_piece_does_not_grow_with_the_text(page):
    times = page.evaluate(LINEAR)
    print(times)
    for name, (short, long) in times.items():
        assert long < 8 * short + 200, f"{name}: 1,000 pieces took {short:.0f} ms, 4,000 took {long:.0f} ms"
