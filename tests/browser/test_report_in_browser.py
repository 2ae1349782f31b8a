"""The report in a real browser: it opens from disk, asks for nothing, and everything that can be clicked does
what it says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

import oppo_sim
from oppo_sim.report.html_page import write_report
from tests.cli_runs import write_scenario
from tests.report_hostile import NASTY, hostile_folders
from tests.report_page import HOSTILE

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--window-size=1280,900",
)  # fmt: skip
CHUNKS, OVERCOMMITS, REPLICAS = [2, 4, 8, 16], [0, 1, 2, 4], [2, 3]
HOLDS_NO_ROLLOUT = 40  # KV tokens of a replica: a prompt of 4 and a response of 40 need more


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep in which half the points fail, of a scenario whose name is markup."""
    root = tmp_path_factory.mktemp("sweep")
    write_scenario(root, name=HOSTILE)
    oppo_sim.sweep(
        root / "tiny.yaml",
        grid={
            "policy.chunk_size": CHUNKS,
            "policy.overcommit": OVERCOMMITS,
            "rollout.num_replicas": REPLICAS,
            "rollout.kv_capacity_tokens": [HOLDS_NO_ROLLOUT, 4000],
        },
        seeds=3,
        steps=4,
        folder=root / "swept",
        figures=False,
    )
    return root / "swept"


@pytest.fixture(scope="module")
def points(sweep: Path) -> pd.DataFrame:
    return pd.read_parquet(sweep / "points.parquet")


@pytest.fixture(scope="module")
def address(sweep: Path) -> str:
    write_report([sweep], sweep.parent / "report.html")
    return (sweep.parent / "report.html").as_uri()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chrome: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page, freshly opened."""
    emulate(chrome, "light")
    chrome.get(address)
    chrome.execute_script("try { localStorage.clear(); } catch {}")
    chrome.get_log("browser")
    chrome.get_log("performance")
    chrome.get(address)
    return chrome


def emulate(driver: webdriver.Chrome, scheme: str, media: str = "") -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature]})


def wait_for(test: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = test()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def one(driver: webdriver.Chrome, selector: str) -> WebElement:
    return driver.find_element(By.CSS_SELECTOR, selector)


def texts(driver: webdriver.Chrome, selector: str) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )
    return found


def requests(driver: webdriver.Chrome) -> list[str]:
    """Addresses that were asked for since the last look."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def row_numbers(driver: webdriver.Chrome) -> list[int]:
    script = "return [...document.querySelectorAll('.points tbody tr')].map((row) => row.dataset.row)"
    return [int(text) for text in driver.execute_script(script)]


def head_button(driver: webdriver.Chrome, name: str) -> WebElement:
    return next(
        one
        for one in driver.find_elements(By.CSS_SELECTOR, ".points tr.names button")
        if one.text.startswith(name)
    )


def filter_of(driver: webdriver.Chrome, name: str) -> WebElement:
    at = next(at for at, text in enumerate(texts(driver, ".points tr.names button")) if text.startswith(name))
    return driver.find_elements(By.CSS_SELECTOR, ".points tr.filters th > *")[at]


def control(driver: webdriver.Chrome, label: str) -> Select:
    found = next(
        one
        for one in driver.find_elements(By.CSS_SELECTOR, ".heat .controls label")
        if one.text.split("\n")[0] == label
    )
    return Select(found.find_element(By.TAG_NAME, "select"))


def cell_of(driver: webdriver.Chrome, row: int) -> WebElement:
    return one(driver, f".heat rect.cell[data-row='{row}']")


def row_where(points: pd.DataFrame, **values: Any) -> int:
    names = {
        "chunk": "policy.chunk_size",
        "overcommit": "policy.overcommit",
        "replicas": "rollout.num_replicas",
        "kv": "rollout.kv_capacity_tokens",
    }
    chosen = np.ones(len(points), dtype=bool)
    for name, value in values.items():
        chosen &= (points[names[name]] == value).to_numpy()
    (row,) = np.flatnonzero(chosen)
    return int(row)


def test_it_opens_from_disk_without_an_error_and_without_a_request(
    browser: webdriver.Chrome, address: str
) -> None:
    assert browser.current_url == address
    assert browser.get_log("browser") == []
    assert (
        browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        == []
    )
    assert [url for url in requests(browser) if not url.startswith("data:")] == [address]


def test_a_name_that_is_markup_stays_text(browser: webdriver.Chrome) -> None:
    assert browser.execute_script("return window.hacked") is None
    assert browser.title == f"Sweep: {HOSTILE}"
    assert one(browser, "h1").text == f"Sweep: {HOSTILE}"
    assert texts(browser, "img") == []


def test_markup_in_every_text_of_every_folder_stays_text(
    chrome: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_report(hostile_folders(tmp_path), tmp_path / "hostile.html", title=NASTY)
    address = (tmp_path / "hostile.html").as_uri()
    chrome.get_log("performance")
    chrome.get(address)
    for each in chrome.find_elements(By.CSS_SELECTOR, "details"):
        chrome.execute_script("arguments[0].open = true", each)
    for button in chrome.find_elements(By.CSS_SELECTOR, ".points tr.names button"):
        button.click()
    assert chrome.execute_script("return window.hacked") is None
    assert " ".join(chrome.title.split()) == " ".join(NASTY.split())
    assert all(NASTY in text for text in texts(chrome, "article > .title"))
    shown = "".join(texts(chrome, "main"))
    assert shown.count("</style><svg onload=window.hacked=1>") > 20
    assert texts(chrome, "main script:not([type='application/json'])") == []
    attributes = chrome.execute_script(
        "return [...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    )
    assert not {name for name in attributes if name.startswith("on")}
    assert [url for url in requests(chrome) if not url.startswith("data:")] == [address]
    addresses = chrome.execute_script(
        "return [...document.querySelectorAll('[href],[src]')].map((one) =>"
        " one.getAttribute('href') ?? one.getAttribute('src'))"
    )
    assert all(address.startswith(("#", "data:")) for address in addresses)


def test_a_script_that_got_in_all_the_same_would_not_run_nor_reach_out(browser: webdriver.Chrome) -> None:
    ran = browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 2';"
        " document.body.append(s); return window.hacked"
    )
    assert ran is None
    reached = browser.execute_async_script(
        "fetch('data:,x').then(() => arguments[0](true), () => arguments[0](false))"
    )
    assert reached is False
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert complaints
    assert all("Content Security Policy" in message for message in complaints)


def test_the_table_shows_every_point_and_sorts_by_any_column(
    browser: webdriver.Chrome, points: pd.DataFrame
) -> None:
    step = points["step_s"]
    assert row_numbers(browser) == sorted(
        range(len(points)), key=lambda row: (np.isnan(step[row]), np.nan_to_num(step[row]), row)
    )
    head_button(browser, "speed-up (").click()
    speedup = points["speedup"].to_numpy()
    shown = row_numbers(browser)
    finite = [row for row in shown if np.isfinite(speedup[row])]
    assert shown[: len(finite)] == finite
    assert list(speedup[finite]) == sorted(speedup[finite], reverse=True)
    assert texts(browser, ".points th[aria-sort='descending'] button") == ["speed-up (×)"]
    head_button(browser, "speed-up (").click()
    assert list(speedup[row_numbers(browser)[: len(finite)]]) == sorted(speedup[finite])
    head_button(browser, "chunk size").click()
    assert list(points["policy.chunk_size"].iloc[row_numbers(browser)]) == sorted(points["policy.chunk_size"])


def test_filters_leave_what_passes_all_of_them_and_can_be_cleared(
    browser: webdriver.Chrome, points: pd.DataFrame
) -> None:
    Select(filter_of(browser, "replicas")).select_by_visible_text("3")
    limit = float(np.nanmedian(points["step_s"]))
    entry = filter_of(browser, "step time (s)")
    entry.send_keys(f"<= {limit:.6f}")
    expected = set(np.flatnonzero((points["rollout.num_replicas"] == 3) & (points["step_s"] <= limit)))
    assert expected
    assert set(row_numbers(browser)) == expected
    assert texts(browser, ".points .count span") == [f"{len(expected)} of {len(points)} points"]
    # The heat map keeps the same points bright.
    best = int(points["step_s"].idxmin())
    kept = [
        int(one.get_attribute("data-row") or -1)
        for one in browser.find_elements(By.CSS_SELECTOR, ".heat rect.cell:not(.out)")
    ]
    in_slice = {
        row for row in expected if points["rollout.num_replicas"][row] == points["rollout.num_replicas"][best]
    }
    assert set(kept) == {
        row
        for row in in_slice
        if points["rollout.kv_capacity_tokens"][row] == points["rollout.kv_capacity_tokens"][best]
    }
    entry.clear()
    entry.send_keys("banana")
    assert entry.get_attribute("aria-invalid") == "true"
    next(
        one
        for one in browser.find_elements(By.CSS_SELECTOR, ".points .count button")
        if one.text == "Clear filters"
    ).click()
    assert len(row_numbers(browser)) == len(points)


LEAST = {"2..3": (2, 3), "> 2": (2.1, 99), "≥ 3": (3, 99), "<=1": (0, 1), "1": (1, 1), "": (0, 99)}


@pytest.mark.parametrize("text", LEAST)
def test_numbers_are_filtered_by_comparisons_and_ranges(
    text: str, browser: webdriver.Chrome, points: pd.DataFrame
) -> None:
    entry = filter_of(browser, "highest staleness")
    entry.send_keys(text)
    low, high = LEAST[text]
    oldest = points["staleness_max"]
    passing = (oldest >= low) & (oldest <= high) if text else np.ones(len(points), dtype=bool)
    assert sum(passing) > 0
    assert set(row_numbers(browser)) == set(np.flatnonzero(passing))


def test_hovering_a_cell_tells_its_value(browser: webdriver.Chrome, points: pd.DataFrame) -> None:
    best = points.loc[points["step_s"].idxmin()]
    row = row_where(points, chunk=4, overcommit=2, replicas=best["rollout.num_replicas"], kv=4000)
    ActionChains(browser).move_to_element(cell_of(browser, row)).perform()
    tip = wait_for(lambda: one(browser, ".tip").text)
    assert "chunk size (tokens) 4" in tip
    assert "overcommit Δ (rollouts) 2" in tip
    shown = one(browser, ".tip strong.value").text
    number, unit = shown.split(" [")[0].split(" ")
    assert unit == "s"
    assert float(number) == pytest.approx(points["step_s"][row], abs=0.006)
    low, high = (float(end) for end in shown[shown.index("[") + 1 : -1].split(", "))
    assert (low, high) == pytest.approx((points["step_s_low"][row], points["step_s_high"][row]), abs=0.006)
    control(browser, "colour").select_by_visible_text("speed-up (×)")
    ActionChains(browser).move_to_element(cell_of(browser, row)).perform()
    shown = wait_for(lambda: one(browser, ".tip strong.value").text)
    assert float(shown.split("×")[0]) == pytest.approx(points["speedup"][row], abs=0.0006)


def test_the_map_can_show_another_measure_slice_and_pair_of_fields(
    browser: webdriver.Chrome, points: pd.DataFrame
) -> None:
    best = points.loc[points["step_s"].idxmin()]

    def shown() -> set[int]:
        return {
            int(one.get_attribute("data-row") or -1)
            for one in browser.find_elements(By.CSS_SELECTOR, ".heat rect.cell")
        }

    def slice_of(replicas: int, kv: int) -> set[int]:
        return set(
            np.flatnonzero(
                (points["rollout.num_replicas"] == replicas) & (points["rollout.kv_capacity_tokens"] == kv)
            )
        )

    assert shown() == slice_of(best["rollout.num_replicas"], 4000)
    other = next(replicas for replicas in REPLICAS if replicas != best["rollout.num_replicas"])
    control(browser, "replicas").select_by_visible_text(str(other))
    assert shown() == slice_of(other, 4000)
    before = cell_of(
        browser, row_where(points, chunk=2, overcommit=4, replicas=other, kv=4000)
    ).get_attribute("fill")
    control(browser, "colour").select_by_visible_text("length bias (%)")
    assert (
        cell_of(browser, row_where(points, chunk=2, overcommit=4, replicas=other, kv=4000)).get_attribute(
            "fill"
        )
        != before
    )
    control(browser, "upwards").select_by_visible_text("replicas")
    assert control(browser, "chunk size (tokens)").first_selected_option.text == str(
        best["policy.chunk_size"]
    )
    assert len(shown()) == len(OVERCOMMITS) * len(REPLICAS)
    control(browser, "across").select_by_visible_text("replicas")
    assert control(browser, "upwards").first_selected_option.text == "overcommit Δ (rollouts)"


def test_failed_points_are_grey_and_say_why(browser: webdriver.Chrome, points: pd.DataFrame) -> None:
    failed = points[points["status"] == "failed"]
    assert len(failed) == len(points) // 2
    row = int(failed.index[0])
    control(browser, "rollout.kv_capacity_tokens").select_by_visible_text(str(HOLDS_NO_ROLLOUT))
    cells = browser.find_elements(By.CSS_SELECTOR, ".heat rect.cell")
    assert all("failed" in (one.get_attribute("class") or "") for one in cells)
    ActionChains(browser).move_to_element(cells[0]).perform()
    assert str(points["error"][row]) in wait_for(lambda: one(browser, ".tip").text)
    assert "What failed, and why" in texts(browser, "h2")
    Select(filter_of(browser, "status")).select_by_visible_text("failed")
    assert set(row_numbers(browser)) == set(failed.index)


def test_keys_move_between_cells_and_choose_one(browser: webdriver.Chrome, points: pd.DataFrame) -> None:
    best = points.loc[points["step_s"].idxmin()]
    start = row_where(points, chunk=4, overcommit=1, replicas=best["rollout.num_replicas"], kv=4000)
    browser.execute_script("arguments[0].focus()", cell_of(browser, start))
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP).perform()
    here = int(browser.switch_to.active_element.get_attribute("data-row") or -1)
    assert here == row_where(points, chunk=8, overcommit=2, replicas=best["rollout.num_replicas"], kv=4000)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert one(browser, ".heat .picked").text.startswith("Chosen: chunk size 8, overcommit Δ 2, replicas")
    code = one(browser, ".heat .picked-code pre").text.replace("\\\n", "").split()
    assert code[:2] == ["oppo", "simulate"]
    assert code[3:7] == ["--set", "policy.chunk_size=8", "--set", "policy.overcommit=2"]


def test_what_is_offered_to_copy_is_what_is_copied_or_selected(browser: webdriver.Chrome) -> None:
    block = one(browser, ".settings .code")
    text = block.find_element(By.TAG_NAME, "pre").text
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    button = block.find_element(By.TAG_NAME, "button")
    button.click()
    said = wait_for(lambda: button.text if button.text != "Copy" else "")
    if said == "Copied":
        copied = browser.execute_async_script(
            "navigator.clipboard.readText().then(arguments[0], (why) => arguments[0](String(why)))"
        )
    else:
        copied = browser.execute_script("return String(getSelection())")
    assert copied.strip() == text.strip()


def luminance(colour: str) -> float:
    red, green, blue = (float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def background(driver: webdriver.Chrome) -> float:
    return luminance(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def ink_of_figures(driver: webdriver.Chrome) -> float:
    return luminance(
        driver.execute_script("return getComputedStyle(document.querySelector('.drawn svg')).fill")
    )


def test_the_theme_follows_the_system_until_one_is_chosen_and_pictures_follow_it(
    browser: webdriver.Chrome,
) -> None:
    assert (background(browser) > 200, ink_of_figures(browser) < 100) == (True, True)
    emulate(browser, "dark")
    assert (background(browser) < 60, ink_of_figures(browser) > 180) == (True, True)
    Select(one(browser, "#theme")).select_by_value("light")
    assert background(browser) > 200
    browser.refresh()
    assert background(browser) > 200
    assert Select(one(browser, "#theme")).first_selected_option.text == "light"
    Select(one(browser, "#theme")).select_by_value("dark")
    emulate(browser, "light")
    assert background(browser) < 60
    emulate(browser, "light", "print")
    assert background(browser) > 250
    assert not one(browser, "#theme").is_displayed()
    assert not one(browser, ".heat .controls").is_displayed()


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_the_page_is_never_wider_than_the_window(width: int, browser: webdriver.Chrome) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert one(browser, ".heat .map svg").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_scripts_the_choice_and_the_pictures_are_there(
    chrome: webdriver.Chrome, address: str
) -> None:
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chrome.get(address)
        assert one(chrome, ".answer").is_displayed()
        assert one(chrome, ".heat .static svg").is_displayed()
        assert one(chrome, ".points noscript p").is_displayed()
        assert not one(chrome, ".tools").is_displayed()
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
