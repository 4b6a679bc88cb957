"""A headless Chromium, driven by selenium: the browser and the driver that Debian has, which fit each other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHROMIUM = "chromium"
DRIVER = "chromedriver"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--lang=en",
)


def is_there() -> bool:
    return shutil.which(CHROMIUM) is not None and shutil.which(DRIVER) is not None


def start(profile: Path, *, width: int = 1280, height: int = 900) -> Chrome:
    """A browser with a new profile in that folder."""
    # selenium looks for a driver in the network if it is not told where one is.
    os.environ["SE_OFFLINE"] = "true"
    options = ChromeOptions()
    options.binary_location = shutil.which(CHROMIUM) or CHROMIUM
    for flag in _FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(shutil.which(DRIVER)))
