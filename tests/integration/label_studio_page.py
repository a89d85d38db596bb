"""Label Studio's pages as people use them: they enter a webhook, and compare pairs by mouse."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from integration.label_studio_server import PASSWORD
from playwright.sync_api import Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
_SIZE = {"width": 1000, "height": 640}
_WRITES = ("POST", "PATCH")


@dataclass(frozen=True)
class Person:
    """Somebody who is logged in, before a window of her own."""

    page: Page = field(repr=False)
    url: str

    def enter_webhook(self, project, url, headers):
        """Fill the form in the project's settings, and leave it open."""
        self.page.goto(f"{self.url}/projects/{project}/settings/webhooks")
        self.page.get_by_role("button", name="Add Webhook").first.click()
        self.page.get_by_placeholder("URL").fill(url)
        more = self.page.locator("form button[type=button]").first  # it has a picture, and no name
        for number, (name, value) in enumerate(headers.items()):
            more.click()
            self.page.get_by_placeholder("header").nth(number).fill(name)
            self.page.get_by_placeholder("value").nth(number).fill(value)

    def save_webhook(self):
        """Send the form, which says that it is saved."""
        with self._wait_for_answer("/api/webhooks"):
            self.page.get_by_role("button", name="Add Webhook").click()
        self.page.get_by_text("Saved!").wait_for()

    def label_all(self, project):
        """Open the stream of tasks that she has not answered."""
        self.page.goto(f"{self.url}/projects/{project}/data?labeling=1")

    def open(self, project, task):
        """Open one task, with her answer to it."""
        self.page.goto(f"{self.url}/projects/{project}/data?task={task}")

    def click(self, text):
        """Click the response that reads so."""
        self._text(text).click()

    def submit(self):
        """Press Submit."""
        with self._wait_for_answer("/annotations"):
            self.page.get_by_role("button", name="Submit current annotation").click()

    def update(self):
        """Press Update."""
        with self._wait_for_answer("/api/annotations/"):
            self.page.get_by_text("Update", exact=True).click()

    def skip(self, text):
        """Press Skip once the task with this text is there."""
        self._text(text).wait_for()
        with self._wait_for_answer("/annotations"):
            self.page.get_by_role("button", name="Skip").click()

    def _text(self, text):
        # The list of tasks beside it has the same texts.
        return self.page.locator(".lsf-richtext__line").get_by_text(text, exact=True)

    @contextmanager
    def _wait_for_answer(self, path):
        """Wait for what the server says to the write that is made meanwhile."""

        def is_it(answer):
            return path in answer.url and answer.request.method in _WRITES

        with self.page.expect_response(is_it) as told:
            yield
        assert told.value.ok, f"{told.value.request.method} {path}: {told.value.status}"


@contextmanager
def chromium():
    """A headless browser: Debian's."""
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not start for root, who runs containers of CI.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--force-color-profile=srgb"]
        )
        try:
            yield browser
        finally:
            browser.close()


def login(browser, url, email):
    """Log in by the form, in a window that shares nothing with others."""
    page = browser.new_context(viewport=_SIZE, locale="en-US").new_page()
    page.goto(f"{url}/user/login/")
    page.locator("input[name=email]").fill(email)
    page.locator("input[name=password]").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(lambda address: "/login" not in address)
    return Person(page, url)
