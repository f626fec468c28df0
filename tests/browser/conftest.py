"""What the tests of the page share: one Chromium, and pages that must do nothing wrong."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.browser import Browser, needs_chromium
from tests.support.stage import Stage


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests, which live in the loop of the session for it."""
    if needs_chromium.args[0]:
        pytest.skip(needs_chromium.kwargs["reason"])
    async with Browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """One for all tests, each of which leaves it as it was but for rounds and events."""
    with Stage() as stage:
        yield stage
