"""Reports in a real browser: Chromium, without a network."""

import shutil

import pytest
from sklearn.datasets import load_digits, load_wine

import fewer
from tests.report.test_render import ODD, wide_panel

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of digits, of odd names, of wide data, and of a target."""
    folder = tmp_path_factory.mktemp("reports")
    X = load_digits(as_frame=True).data
    options = {"strategies": ["search", "gradient"], "validation": 0.2, "random_state": 0}
    fewer.select(X[:1000], 10, **options).report(folder / "digits.html")
    odd = X.iloc[:300, 18 : 18 + len(ODD)]
    odd.columns = ODD
    fewer.select(odd, 3, strategies=["search"], random_state=0).report(folder / "odd.html")
    wide_panel(10_000, 100).report(folder / "wide.html")
    X, y = load_wine(return_X_y=True, as_frame=True)
    quick = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    fewer.select(X, 2, target=y.to_numpy(), **quick).report(folder / "target.html")
    return folder


@pytest.fixture
def show(browser, pages):
    """Open a report; at the end it must have asked for nothing and complained of nothing."""
    said, contexts = [], []

    def open_page(name, width=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url))
        page.goto((pages / f"{name}.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in said if not text.startswith(("file:", "data:"))] == []


def names(page, table):
    """Names in the rows that are shown."""
    return page.locator(f"{table} tbody tr:visible th").all_inner_texts()


def numbers(page, table, column):
    cells = page.locator(f"{table} tbody tr:visible td:nth-child({column})").all_inner_texts()
    return [float(text.replace("−", "-").split()[0]) for text in cells if text != "–"]


def test_chosen_features_are_sorted_and_searched(show):
    page = show("digits")
    assert numbers(page, "#chosen-table", 1) == list(range(1, 11))
    gain = page.get_by_role("button", name="Gain")
    gain.click()
    assert numbers(page, "#chosen-table", 3) == sorted(numbers(page, "#chosen-table", 3))
    heading = page.locator("#chosen-table th", has=gain)
    assert heading.get_attribute("aria-sort") == "ascending"
    gain.click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert numbers(page, "#chosen-table", 1) == list(range(1, 11))
    assert page.locator("#chosen-table [aria-sort]").count() == 1
    first = names(page, "#chosen-table")[0]
    page.fill("#chosen-search", first.upper())
    assert first in names(page, "#chosen-table")
    assert len(names(page, "#chosen-table")) < 10
    assert "matches among 10 features" in page.inner_text("#chosen-count")


def test_sorting_by_keyboard(show):
    page = show("digits")
    page.locator("#features-search").focus()
    page.keyboard.press("Tab")  # the region that scrolls
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Feature"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert names(page, "#features-table")[0].startswith("pixel_0_0")
    page.keyboard.press("Space")
    assert names(page, "#features-table")[0].startswith("pixel_7_7")


def test_the_skip_link_comes_first_and_leads_to_the_report(show):
    page = show("digits")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_click_on_a_feature_shows_its_values(show):
    page = show("digits")
    before = page.inner_text("#scatter figcaption")
    page.fill("#features-search", "pixel_3_3")
    page.get_by_role("button", name="pixel_3_3").click()
    after = page.inner_text("#scatter figcaption")
    assert after != before
    assert after.startswith("pixel_3_3: R²")
    assert page.locator("#scatter circle").count() == 200
    assert "pixel_3_3" in page.locator("#scatter title").text_content()
    assert page.locator("tr.picked").count() == 1
    assert page.locator(".pick[aria-pressed=true]").inner_text() == "pixel_3_3"


def test_measured_features_lie_on_the_diagonal(show):
    page = show("digits")
    chosen = names(page, "#chosen-table")[0]
    page.fill("#features-search", chosen)
    page.get_by_role("button", name=chosen, exact=True).click()
    assert "; measured" in page.inner_text("#scatter figcaption")
    places = page.eval_on_selector_all(
        "#scatter circle", "dots => dots.map(dot => [dot.cx.baseVal.value, dot.cy.baseVal.value])"
    )
    for x, y in places:
        assert abs((x - 52) / 320 - (256 - y) / 248) < 0.01


def test_missing_values_come_last_whichever_way(show):
    page = show("digits")
    back = page.locator("#features-table").get_by_role("button", name="R²")
    for _ in range(2):
        back.click()
        texts = page.locator("#features-table tbody td:nth-child(2)").all_inner_texts()
        known = [text != "–" for text in texts]
        assert known == sorted(known, reverse=True)
        assert not all(known)


def test_the_map_says_what_the_pointer_is_on(show):
    page = show("digits")
    page.locator("#map").hover(position={"x": 3, "y": 3})
    first = names(page, "#chosen-table")[0]
    assert page.inner_text("#map-cell") == f"{first} and {first}: 1.00"


def test_odd_names_are_only_names(show):
    page = show("odd")
    assert page.title() == "3 of 13 features"
    shown = names(page, "#features-table")
    assert len(shown) == len(ODD)
    for name in ("<b>bold</b>", "{{ 7 * 7 }}", "<!--"):
        page.fill("#features-search", name)
        found = names(page, "#features-table")
        assert [text.split("\n")[0].removesuffix("measured") for text in found] == [name]


def test_wide_data_are_shown_in_part_and_searched_in_full(show):
    page = show("wide")
    assert len(names(page, "#features-table")) == 100
    assert page.inner_text("#features-count") == "100 of 10,000 features"
    page.get_by_role("button", name="Show more").click()
    assert len(names(page, "#features-table")) == 200
    page.fill("#features-search", "00009999")
    assert [name.split("\n")[0] for name in names(page, "#features-table")] == ["ENSG00000009999"]
    assert page.inner_text("#features-count") == "1 of 1 matches among 10,000 features"
    assert page.get_by_role("button", name="Show more").is_hidden()


@pytest.mark.parametrize("name", ["digits", "odd", "wide"])
@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_overflows_the_page(show, name, width):
    page = show(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator("#main").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    size = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert size >= 16


def test_dark_mode_is_dark_and_paper_is_white(show):
    def colours(page):
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, "
            "getComputedStyle(document.body).color]"
        )

    light = colours(show("digits", color_scheme="light"))
    page = show("digits", color_scheme="dark")
    dark = colours(page)
    assert light == ["rgb(255, 255, 255)", "rgb(26, 29, 33)"]
    assert dark == ["rgb(20, 23, 27)", "rgb(233, 235, 238)"]
    page.emulate_media(media="print", color_scheme="dark")
    assert colours(page) == light


def test_paper_has_every_feature(show):
    page = show("digits")
    page.fill("#features-search", "pixel_0")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert len(names(page, "#features-table")) == 64
    scroll = page.locator(".listing .scroll")
    assert scroll.evaluate("box => box.scrollHeight <= box.clientHeight + 1")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(names(page, "#features-table")) == 8


def test_without_scripts_there_is_still_a_report(show):
    page = show("digits", java_script_enabled=False)
    assert len(names(page, "#chosen-table")) == 10
    assert len(names(page, "#features-table")) > 50
    assert page.locator("svg polyline").count() >= 4


def test_bars_and_shades_under_a_policy_without_inline_styles(show):
    page = show("target")  # show() fails if the browser has refused a style
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert "unsafe" not in policy
    assert page.locator("[style]").count() == 0
    width = "element => element.getBoundingClientRect().width"
    bars = page.locator("tr.ours svg.fill")
    assert bars.count() > 0
    for bar in bars.all():
        shown = bar.locator("xpath=../following-sibling::td").inner_text().split()[0]
        number = float(shown.rstrip("%")) / (100 if float(shown.rstrip("%")) > 1 else 1)
        share = bar.locator("rect").evaluate(width) / bar.evaluate(width)
        assert share == pytest.approx(number, abs=0.006)
        assert bar.locator("rect").evaluate("r => getComputedStyle(r).fill") == "rgb(0, 114, 178)"
    spark = page.locator("#chosen-table svg.spark").first
    assert spark.bounding_box()["width"] == 36
    diagonal = page.locator(".confusion tbody tr").first.locator("td").first
    colour = diagonal.evaluate("cell => getComputedStyle(cell).backgroundColor")
    assert colour.startswith("rgba(0, 114, 178, 0.")
