"""Write the pictures of docs/images: real runs on the page, as the tests have them, in Chromium."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.browser import Browser
from tests.support.stage import FAILED, TRAINING, Stage

if TYPE_CHECKING:
    from playwright.async_api import Page

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
WIDE, TELEPHONE = {"width": 1200, "height": 1250}, {"width": 360, "height": 760}
# Of training, so that there is something to see of each part of it.
TRAINED_S = 12.0


async def take(browser: Browser, stage: Stage) -> None:
    """Let workers fail twice, and take all pictures."""
    for _ in range(2):
        await asyncio.sleep(TRAINED_S)
        stage.fail_a_worker()
    await asyncio.sleep(TRAINED_S)
    await picture(browser, stage.link(), "runs", {"width": 1200, "height": 390})
    await picture(browser, stage.link(TRAINING), "run", WIDE, choose=True)
    await picture(browser, stage.link(TRAINING), "run-dark", WIDE, choose=True, color_scheme="dark")
    await picture(browser, stage.link(TRAINING), "telephone", TELEPHONE, color_scheme="dark")
    await picture(browser, stage.link(FAILED), "failure", {"width": 1200, "height": 850})


async def picture(
    browser: Browser,
    link: str,
    name: str,
    size: dict[str, int],
    *,
    choose: bool = False,
    **looks: Any,
) -> None:
    """Write what a link leads to; ``choose`` shows a rank in the grid."""
    async with browser.visit(link, viewport=size, **looks) as visit:
        await visit.page.locator("[data-view]").wait_for()
        if choose:
            await chosen(visit.page)
        for traceback in await visit.page.locator("details[open] > summary").all():
            await traceback.click()  # it has paths of this machine
        await asyncio.sleep(3)  # for all that is asked for when it is seen
        await visit.page.screenshot(path=IMAGES / f"{name}.png")


async def chosen(page: Page) -> None:
    """Choose the last rank."""
    await page.locator("[data-ranks=canvas]").focus()
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    await page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")


async def main() -> None:
    """Take them."""
    IMAGES.mkdir(exist_ok=True)
    with Stage(is_pretty=True) as stage:
        async with Browser() as browser:
            await take(browser, stage)


if __name__ == "__main__":
    asyncio.run(main())
