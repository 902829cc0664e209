"""A real headless browser for the tests: this machine's Chromium, driven by Playwright; else a skip."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

from .trees import MISSING

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


def missing(why: str) -> None:
    """Skip, and say why at the end of the run."""
    MISSING["headless browser"] = why
    pytest.skip(why)


@contextlib.contextmanager
def opened():
    """A browser that is closed afterwards. `MUHMOD_BROWSER` names another than the first one found."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        missing("playwright is not installed")
    at = os.environ.get("MUHMOD_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            # Its own download, where there is one and no other is found; a sandbox needs no root.
            browser = playwright.chromium.launch(executable_path=at, args=["--no-sandbox"])
        except Error as error:
            missing(f"no browser starts: {str(error).splitlines()[0]}")
        with contextlib.closing(browser):
            yield browser
