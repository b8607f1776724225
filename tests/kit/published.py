"""The published chat templates, for tests that go over all of them."""

from functools import cache

import pytest

from services.templates.chat_template import ChatTemplate
from services.templates.probe import probe
from services.templates.traits import TemplateTraits
from sessions.published import of_trl, published

TEMPLATES = list(of_trl())
"""The names of those that are installed with the tests."""
TEMPLATE_FILES = published()
"""The files of these and of the folder CHAT_TEMPLATES, by name."""
needs_templates = pytest.mark.skipif(not TEMPLATES, reason="trl is not installed")


@cache
def traits_of(template: ChatTemplate) -> TemplateTraits:
    """A probe renders many conversations, so a template has one."""
    return probe(template)
