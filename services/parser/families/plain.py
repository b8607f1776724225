"""Models without reasoning and without calls: everything is text."""

from services.parser.family import Family
from services.parser.markup import Markup
from services.parser.writing import Style

FAMILY = Family(
    name="plain",
    models="base models, and chat models that know no tools",
    tool_parsers=("none",),
    grammar=Markup(),
    style=Style(),
)
